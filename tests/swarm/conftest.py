"""A real gateway with a heartbeat of a second, and `fairlead swarm` as a process against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway_process import ServeProcess

TIMEOUT = 60.0


class Swarm:
    """One `fairlead swarm -o json`. Its standard error grows in a file that a test may watch."""

    def __init__(self, url: str, folder: Path, *flags: str) -> None:
        self._err = folder / f"swarm-{time.monotonic_ns()}.err"
        with self._err.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairlead", "swarm", "--url", url, "-o", "json", *flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink,
                env={**os.environ, "FAIRLEAD_AGENT_TOKEN": ""},
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._err.read_text()

    def until_holding(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while "holding:" not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def result(self, timeout: float = TIMEOUT) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=timeout)
        assert out, self.log
        found: dict[str, Any] = json.loads(out)
        return found


class MakeSwarmGateway(Protocol):
    def __call__(self, *flags: str) -> ServeProcess: ...


class MakeSwarm(Protocol):
    def __call__(self, url: str, *flags: str) -> Swarm: ...


def start(folder: Path, redis: str, *flags: str, name: str = "swarmed") -> ServeProcess:
    made = ServeProcess(folder, name, redis, "--heartbeat=1", *flags)
    made.wait_ready()
    return made


@pytest.fixture(scope="module")
def gateway(shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """For tests that do not harm it."""
    made = start(tmp_path_factory.mktemp("gateway"), shared_valkey.url, "--accept-rate=5000")
    yield made
    made.stop()


@pytest.fixture
def make_gateway(shared_valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[MakeSwarmGateway]:
    """For a test that harms its own gateway."""
    made: list[ServeProcess] = []

    def make(*flags: str) -> ServeProcess:
        made.append(start(tmp_path, shared_valkey.url, *flags, name=f"own-{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[MakeSwarm]:
    made: list[Swarm] = []

    def make(url: str, *flags: str) -> Swarm:
        made.append(Swarm(url, tmp_path, *flags))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
