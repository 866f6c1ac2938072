"""A real gateway with a real agent, a scripted platform API, a relay that disturbs connections, a terminal, and the
command line as a real process. tests/support defines what the fixtures make; tests import the types from there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cli.processes import CliFleet, Part, environment, gateway
from support.cli.relay import Relay
from support.cli.scripted_api import ScriptedApi, scripted
from support.cli.terminal import Screen
from support.waiting import WAIT, wait_until


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    yield from scripted()


@pytest.fixture
def second_api() -> Iterator[ScriptedApi]:
    yield from scripted()


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[[Callable[[], object]], object]:
    return wait_until


Start = Callable[..., subprocess.Popen[bytes]]
Run = Callable[..., subprocess.CompletedProcess[bytes]]


def address(api: ScriptedApi | CliFleet | str | None) -> str | None:
    return api.url if isinstance(api, ScriptedApi) else api.api if isinstance(api, CliFleet) else api


@pytest.fixture
def start(api: ScriptedApi) -> Iterator[Start]:
    """Start `fairlead …` against the scripted API; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(*args: str, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fairlead", *args],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(api.url),
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(WAIT)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()


@pytest.fixture
def run() -> Run:
    """Run `fairlead …` to its end. Without an `api` it goes to the default address."""

    def call(
        *args: str,
        api: ScriptedApi | CliFleet | str | None = None,
        input: bytes | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "fairlead", *args],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=WAIT * 2,
            env={**environment(address(api)), **(env or {})},
            check=False,
        )

    return call


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    parts: list[Part] = []
    try:
        part, links, api, admin = gateway(folder, "--redis=embedded")
        parts.append(part)
        agent = Part(folder / "agent.log", "agent", "run", f"--url={links}", "--id=web-1")
        parts.append(agent)
        line = [sys.executable, "-P", "-m", "fairlead", "agents", "ls", "--state=online", "--output=name"]

        def online() -> bool:
            return b"web-1" in subprocess.run(line, env=environment(api), capture_output=True, check=False).stdout

        wait_until(online)
        yield CliFleet(links, api, admin, agent)
    finally:
        for part in reversed(parts):
            part.stop()


@pytest.fixture
def gateway_over() -> Iterator[Callable[..., tuple[str, str, str]]]:
    """Make a gateway of the test's own over the Redis at a URL: its addresses of links, API, probes."""
    parts: list[Part] = []

    def make(folder: Path, redis: str, *flags: str) -> tuple[str, str, str]:
        part, *where = gateway(folder, f"--redis={redis}", *flags)
        parts.append(part)
        return where[0], where[1], where[2]

    yield make
    for part in parts:
        part.stop()


@pytest.fixture
def relay_to() -> Iterator[Callable[[str], Relay]]:
    """Make a relay before an address."""
    made: list[Relay] = []

    def make(target: str) -> Relay:
        relay = Relay(target)
        relay.start()
        made.append(relay)
        return relay

    yield make
    for relay in made:
        relay.stop()


@pytest.fixture
def screen() -> Iterator[Callable[..., Screen]]:
    """A terminal with `fairlead …` on it."""
    made: list[Screen] = []

    def make(api: str, *args: str, env: dict[str, str] | None = None) -> Screen:
        line = [sys.executable, "-P", "-m", "fairlead", *args]
        clean = {key: value for key, value in environment(api).items() if key != "NO_COLOR"}
        made.append(Screen(line, {**clean, "TERM": "vt100", "PS1": "$ ", **(env or {})}))
        return made[-1]

    yield make
    for one in made:
        one.close()
