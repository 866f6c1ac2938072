"""`fairlead agents rm` removes agents that have left, after a confirmation."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable

import pytest

from fairlead.agent import Agent
from fairlead.client import Client
from fairlead.errors import AgentOnline

from support.cli.processes import CliFleet
from support.cli.terminal import Screen

Run = Callable[..., subprocess.CompletedProcess[bytes]]
MakeScreen = Callable[..., Screen]


async def leave(fleet: CliFleet, *names: str) -> None:
    """Agents of these names were there, and have left."""
    for name in names:
        agent = Agent(fleet.links, id=name, token="development-agent-token")
        serving = asyncio.create_task(agent.serve())
        async with Client(fleet.api, "development-platform-token") as client, asyncio.timeout(20):
            for wanted in ("online", "away"):
                while wanted not in [one.state async for one in client.agents() if one.id == name]:
                    await asyncio.sleep(0.05)
                agent.stop()
        await serving


def listed(fleet: CliFleet, run: Run) -> list[str]:
    return run("agents", "ls", "-o", "name", api=fleet).stdout.decode().split()


def test_rm_removes_offline_agents_and_refuses_online_ones(fleet: CliFleet, run: Run) -> None:
    asyncio.run(leave(fleet, "left-1", "left-2"))
    done = run("agents", "rm", "--yes", "left-1", "web-1", "nobody", "left-2", "left-1", api=fleet)
    assert done.returncode == 1
    assert done.stdout.decode().splitlines() == [
        f"removed {name}: 0 open commands ended, 0 events deleted" for name in ("left-1", "left-2")
    ]
    assert "agent 'web-1' is online" in done.stderr.decode()
    assert "unknown agent 'nobody'" in done.stderr.decode()
    assert listed(fleet, run) == ["web-1"]
    alone = run("agents", "rm", "--yes", "web-1", api=fleet)
    assert (alone.returncode, b"stop the agent itself" in alone.stderr) == (1, True)
    assert run("agents", "rm", "--yes", "nobody", api=fleet).returncode == 2


def test_rm_asks_before_it_removes(fleet: CliFleet, run: Run, screen: MakeScreen) -> None:
    asyncio.run(leave(fleet, "left"))
    piped = run("agents", "rm", "left", api=fleet, input=b"y\n")
    assert (piped.returncode, b"add --yes" in piped.stderr) == (2, True)
    shown = screen(fleet.api, "agents", "rm", "left")
    shown.until(rb"Remove left with all labels, facts and events\? \[y/N\]")
    shown.type(b"n\n")
    assert shown.wait() == 1
    assert "left" in listed(fleet, run)
    shown = screen(fleet.api, "agents", "rm", "left")
    shown.until(rb"\[y/N\]")
    shown.type(b"y\n")
    shown.until(rb"removed left")
    assert shown.wait() == 0
    assert "left" not in listed(fleet, run)


async def test_the_client_raises_agent_online(fleet: CliFleet) -> None:
    async with Client(fleet.api, "development-platform-token") as client:
        with pytest.raises(AgentOnline, match="disconnect it"):
            await client.delete("web-1")
