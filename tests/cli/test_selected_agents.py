"""`fairlead agents ls -l` and `fairlead run --dry-run -l` against a real gateway: versions are compared as versions,
and who lacks the fact never matches a comparison."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.agent import Agent
from fairlead.agent.host import fact_reader
from fairlead.client import Client

from support.cli.processes import CliFleet

Run = Callable[..., subprocess.CompletedProcess[bytes]]
VERSIONS: dict[str, str | None] = {
    "v9": "9",
    "v12": "12",
    "v12-1": "12.1",
    "v22-04": "22.04",
    "words": "jammy sid",
    "none": None,
}
CASES: dict[str, list[str] | None] = {
    "os.version<12,!drained": ["v9", "words"],
    "os.version<12.1,!drained": ["v12", "v9", "words"],
    "os.version <= 12": ["v12", "v9", "words"],
    "os.version>12": ["v12-1", "v22-04"],
    "os.version>=12.1,os.version<22": ["v12-1"],
    "fact.os.version>=9,!drained": ["v12", "v12-1", "v22-04", "v9"],
    "os.version>=22,drained": [],
    "env=a b": None,
    "os.version<": None,
    "os.version<12 drained": None,
    "!os.version<12": None,
}
"""Letters come before numbers. None: refused."""


def facts(version: str | None) -> dict[str, str]:
    return {"fleet": "mine"} | ({} if version is None else {"os.version": version})


@asynccontextmanager
async def agents(fleet: CliFleet) -> AsyncIterator[None]:
    """One agent for each version, of which one was drained by a label, beside `web-1`. Others use the same fleet, so
    they are removed at the end."""
    made = [Agent(fleet.links, name, "development-agent-token", facts=facts(version))
            for name, version in VERSIONS.items()]  # fmt: skip
    serving = [asyncio.create_task(agent.serve()) for agent in made]
    try:
        async with Client(fleet.api, "development-platform-token") as client, asyncio.timeout(40):
            while await client.count_agents("fleet=mine", "online") < len(VERSIONS):
                await asyncio.sleep(0.05)
            await client.label("none", {"drained": "yes"})
        yield
    finally:
        for agent in made:
            agent.stop()
        await asyncio.wait_for(asyncio.gather(*serving), 40)
        async with Client(fleet.api, "development-platform-token") as client, asyncio.timeout(40):
            while await client.count_agents("fleet=mine", "online"):
                await asyncio.sleep(0.05)
            for name in VERSIONS:
                await client.delete(name)


@pytest.mark.timeout(300)
def test_versions_are_compared_from_the_command_line(
    fleet: CliFleet, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fact_reader, "ROOT", tmp_path)  # a host that tells no version by itself

    async def compare() -> None:
        async with agents(fleet):
            for selector, expected in CASES.items():
                await asyncio.to_thread(check, selector, expected)

    def check(selector: str, expected: list[str] | None) -> None:
        mine = f"fleet=mine,{selector}"
        listed = run("agents", "ls", "-o", "name", "-l", mine, api=fleet)
        counted = run("agents", "ls", "--count", "-l", mine, api=fleet)
        planned = run("run", "--dry-run", "-o", "json", "-l", mine, "sys.info", api=fleet)
        if expected is None:
            assert listed.returncode == counted.returncode == planned.returncode == 2, (listed, planned)
            assert all(b"invalid selector" in done.stderr for done in (listed, counted, planned)), listed
            return
        assert sorted(listed.stdout.decode().split()) == expected, (selector, listed)
        assert int(counted.stdout) == len(expected), (selector, counted)
        assert all(f'"{name}"'.encode() in planned.stdout for name in expected), (selector, planned)
        others = VERSIONS.keys() - set(expected)
        assert not any(f'"{name}"'.encode() in planned.stdout for name in others), (selector, planned)

    asyncio.run(compare())
