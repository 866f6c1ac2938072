"""Agents with a journal against the real node: what a caller sees when their process is killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.agent.journal.replay import replay

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.waiting import until

AGENT = """
import asyncio, sys
from pathlib import Path
from fairlead.agent import Agent, Command

here = Path(__file__).parent
agent = Agent(sys.argv[1], sys.argv[2], "development-agent-token", journal=sys.argv[3] if len(sys.argv) > 3 else None)

@agent.command("work")
async def work(command: Command, lines: int, hang: bool = False, until: str = ""):
    with (here / "runs").open("a") as f:
        f.write(f"{command.id}\\n")
    for n in range(lines):
        yield f"line {n}\\n"
    (here / "written").touch()
    while hang or (until and not (here / until).exists()):
        await asyncio.sleep(0.02)
    for n in range(lines, lines * 2):
        yield f"line {n}\\n"
    (here / "done").touch()

if __name__ == "__main__":
    agent.run()
"""


class AgentHost:
    """One machine and its agent."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.memory = folder / "memory"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "agent.py").write_text(AGENT)

    def start(self, gateway: GatewayProcess, durable: bool = True) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(self.folder / "agent.py"), gateway.link, self.name]
                + ([str(self.memory)] if durable else []),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def runs(self) -> int:
        path = self.folder / "runs"
        return len(path.read_text().splitlines()) if path.exists() else 0

    async def until(self, name: str) -> None:
        await until((self.folder / name).exists)

    async def opened(self) -> None:
        """Wait until the process that runs now has opened the journal."""
        assert self._process is not None
        pid = str(self._process.pid)
        await until(lambda: (self.memory / "lock").read_text() == pid)

    async def journaled_end(self, command: str) -> None:
        await until(lambda: replay((self.memory / "journal").read_bytes()).state.commands[command].end is not None)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    made = AgentHost(tmp_path, f"durable-{tmp_path.name}"[:60])
    yield made
    made.kill()


async def online(api: GatewayApi, host: AgentHost) -> bool:
    answer = await api.http.get(f"/v1/agents/{host.name}")
    return bool(answer.status_code == 200 and answer.json()["state"] == "online")


def lines(count: int) -> str:
    return "".join(f"line {n}\n" for n in range(count))


async def test_an_agent_killed_during_a_command_reports_outcome_unknown(
    gateway: GatewayProcess, api: GatewayApi, host: AgentHost
) -> None:
    host.start(gateway)
    await until(lambda: online(api, host))
    command = await api.start(host.name, payload={"lines": 500, "hang": True})
    await host.until("written")
    host.kill()
    host.start(gateway)
    end = await api.end(command)
    assert end["state"] == "failed"
    assert end["error"]["code"] == "outcome_unknown"
    assert "not run again" in end["error"]["message"], "the agent says it, behind what it had produced"
    assert await api.output(command) == lines(500)
    assert host.runs == 1


async def test_an_end_recorded_while_the_gateway_was_frozen_survives_a_kill(
    gateway: GatewayProcess, api: GatewayApi, host: AgentHost
) -> None:
    host.start(gateway)
    await until(lambda: online(api, host))
    command = await api.start(host.name, payload={"lines": 100, "until": "go"})
    await host.until("written")
    gateway.signal(signal.SIGSTOP)
    try:
        (host.folder / "go").touch()
        await host.until("done")
        await host.journaled_end(command)
        host.kill()
        host.start(gateway)
    finally:
        gateway.signal(signal.SIGCONT)
    assert (await api.end(command))["state"] == "ok"
    assert await api.output(command) == lines(200)
    assert host.runs == 1


async def test_a_lost_folder_is_logged_by_the_gateway(
    gateway: GatewayProcess, api: GatewayApi, host: AgentHost
) -> None:
    host.start(gateway)
    await until(lambda: online(api, host))
    command = await api.start(host.name, payload={"lines": 10, "hang": True})
    await host.until("written")
    host.kill()
    shutil.rmtree(host.memory)
    host.start(gateway)
    end = await api.end(command)
    assert end["state"] == "failed"
    assert end["error"]["code"] == "outcome_unknown"
    assert "not run again" not in end["error"]["message"], "the agent knows nothing of it"
    assert host.runs == 1


async def test_another_process_with_the_same_journal_continues(
    gateway: GatewayProcess, api: GatewayApi, host: AgentHost
) -> None:
    """The agent is killed and started twice: the second new process must still know what the first one had restored."""
    host.start(gateway)
    await until(lambda: online(api, host))
    command = await api.start(host.name, payload={"lines": 50, "hang": True})
    await host.until("written")
    gateway.signal(signal.SIGSTOP)
    try:
        for _ in range(2):
            host.kill()
            host.start(gateway)
            await host.opened()
            await host.journaled_end(command)
    finally:
        gateway.signal(signal.SIGCONT)
    await until(lambda: online(api, host))  # a call to Redis that was under way all that time has failed
    assert (await api.end(command))["error"]["code"] == "outcome_unknown"
    assert await api.output(command) == lines(50)
    assert host.runs == 1


@pytest.mark.parametrize("durable", [True, False], ids=["by the agent", "by the gateway"])
async def test_a_safe_command_without_output_runs_again(
    gateway: GatewayProcess, api: GatewayApi, host: AgentHost, durable: bool
) -> None:
    host.start(gateway, durable)
    await until(lambda: online(api, host))
    command = await api.start(host.name, payload={"lines": 0, "until": "go"}, retry="safe")
    await host.until("written")
    host.kill()
    (host.folder / "go").touch()
    host.start(gateway, durable)
    assert (await api.end(command))["state"] == "ok"
    assert host.runs == 2
