"""A real gateway with a heartbeat of a second, and `fairlead swarm` as a process against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway_process import ServeProcess
from support.swarm_process import Swarm


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
