"""A real gateway with a heartbeat of a second, and `fairlead swarm` as a process against it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from fairlead.store.embedded import EmbeddedValkey

READY = re.compile(r"(?:is|are) ready: links on ([\d.:]+), api on ([\d.:]+), admin on ([\d.:]+)")
PATIENCE = 30.0


class Gateway:
    """One `fairlead serve`."""

    def __init__(self, folder: Path, redis: str, *flags: str) -> None:
        log = folder / "gateway.log"
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "fairlead", "serve", "--node", "swarmed", "--redis", redis,
                    "--link-port=0", "--api-port=0", "--admin-port=0", "--heartbeat=1", *flags,
                ],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while not (found := READY.search(log.read_text())):
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        self.link, self.api = f"ws://{found[1]}", f"http://{found[2]}"

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)


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
    def said(self) -> str:
        return self._err.read_text()

    def until_holding(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while "holding:" not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def result(self, timeout: float = PATIENCE) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=timeout)
        assert out, self.said
        found: dict[str, Any] = json.loads(out)
        return found


class MakeGateway(Protocol):
    def __call__(self, *flags: str) -> Gateway: ...


class MakeSwarm(Protocol):
    def __call__(self, url: str, *flags: str) -> Swarm: ...


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(tmp_path_factory.mktemp("valkey"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="module")
def gateway(valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """For tests that leave it whole."""
    made = Gateway(tmp_path_factory.mktemp("gateway"), valkey.url, "--accept-rate=5000")
    yield made
    made.stop()


@pytest.fixture
def make_gateway(valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[MakeGateway]:
    """For a test that maltreats its own."""
    made: list[Gateway] = []

    def make(*flags: str) -> Gateway:
        made.append(Gateway(tmp_path, valkey.url, *flags))
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
