"""systemd's side: a real datagram socket that receives READY, STATUS, WATCHDOG and STOPPING; and the unit file."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest

from fairlead.wire.messages import End

from support.agent.fixtures import StartAgentProcess
from support.agent.scripted_gateway import Gateway

TIMEOUT = 20.0


class Manager:
    """What systemd is to a service. `heard` has each datagram and its time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages: list[tuple[float, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)

    def listen(self) -> None:
        try:
            while True:
                self.messages.append((time.monotonic(), self._socket.recv(4096).decode()))
        except BlockingIOError:
            pass

    async def until(self, condition: Callable[[list[str]], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while True:
                self.listen()
                if condition([text for _, text in self.messages]):
                    return
                await asyncio.sleep(0.01)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = f"@fairlead-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    manager = Manager(address)
    yield manager
    manager.close()


RUN = ("-m", "fairlead", "agent", "run", "--id", "edge-1", "--url")


async def test_ready_is_sent_with_the_first_link_and_status_with_each_change(
    gateway: Gateway, agent_process: StartAgentProcess, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    gateway.refusals.append((503, {"Retry-After": "0"}))
    process = agent_process(*RUN, gateway.url)
    await manager.until(
        lambda messages: any("STATUS=not linked: the gateway refused the upgrade with 503" in h for h in messages)
    )
    link = await gateway.accept()
    manager.listen()
    assert not any("READY" in text for _, text in manager.messages), "it is not welcomed yet"
    await link.welcome()
    await manager.until(lambda messages: any(h.startswith("READY=1\nSTATUS=linked to ws://") for h in messages))
    await link.cut()
    await manager.until(
        lambda messages: messages[-1].startswith("STATUS=not linked: ") or "STATUS=linked" in messages[-1]
    )
    link = await gateway.linked()
    await manager.until(lambda messages: any(h.startswith("STATUS=linked to ws://") for h in messages))
    assert sum("READY=1" in text for _, text in manager.messages) == 1
    await manager.until(lambda messages: messages.count("WATCHDOG=1") >= 8)
    beats = [at for at, text in manager.messages if text == "WATCHDOG=1"]
    gaps = [later - earlier for earlier, later in pairwise(beats)]
    assert max(gaps) < 0.4, "the watchdog would have ended the agent"
    process.signal(signal.SIGTERM)
    await manager.until(lambda messages: any(h.startswith("STOPPING=1") for h in messages))
    assert await process.exit_code() == 0


async def test_a_blocked_event_loop_stops_the_watchdog_messages(
    gateway: Gateway, agent_process: StartAgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    source = (
        "import sys, time\nfrom fairlead.agent import Agent\n"
        "agent = Agent(sys.argv[1], 'edge-1', 't')\n"
        "async def hang() -> None:\n    time.sleep(2)\n"
        "agent.command('hang')(hang)\nagent.run()\n"
    )
    agent_process("-c", source, gateway.url)
    link = await gateway.linked()
    await manager.until(lambda messages: messages.count("WATCHDOG=1") >= 3)
    await link.command("c", "hang")
    await manager.until(lambda messages: bool(link.of(End, "c")) and messages.count("WATCHDOG=1") >= 5)
    beats = [at for at, text in manager.messages if text == "WATCHDOG=1"]
    assert max(later - earlier for earlier, later in pairwise(beats)) > 1.5
    manager.close()


async def test_the_watchdog_of_another_process_is_ignored_and_not_inherited(
    gateway: Gateway, agent_process: StartAgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    agent_process(*RUN, gateway.url)
    link = await gateway.linked()
    await link.command("c", "exec", {"argv": ["env"]})
    await link.end("c")
    for name in (b"NOTIFY_SOCKET", b"WATCHDOG"):
        assert name not in link.output("c")
    manager.listen()
    assert [text for _, text in manager.messages if "READY" in text]
    assert "WATCHDOG=1" not in [text for _, text in manager.messages]
    manager.close()


async def test_the_agent_continues_when_the_manager_is_gone(
    gateway: Gateway, agent_process: StartAgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    process = agent_process(*RUN, gateway.url)
    await gateway.linked()
    process.signal(signal.SIGTERM)
    assert await process.exit_code() == 0
    assert "Traceback" not in process.log


async def test_the_unit_knows_the_exit_codes(gateway: Gateway, agent_process: StartAgentProcess) -> None:
    process = agent_process(*RUN, gateway.url)
    link = await gateway.linked()
    await link.close(4507)
    assert await process.exit_code() == 3
    assert "RestartPreventExitStatus=2 3" in unit()
    process = agent_process(*RUN, "http://x")
    assert await process.exit_code() == 2


def unit() -> str:
    return (resources.files("fairlead.agent") / "fairlead-agent.service").read_text()


def test_the_unit_file_is_complete(tmp_path: Path) -> None:
    lines = [line for line in unit().splitlines() if line and not line.startswith(("#", "["))]
    settings = dict(line.split("=", 1) for line in lines)
    assert len(settings) == len(lines), "a setting is given twice"
    assert settings["Type"] == "notify"
    assert int(settings["WatchdogSec"]) > 0
    assert settings["ExecStart"].split()[1:3] == ["agent", "run"]
    if (analyze := shutil.which("systemd-analyze")) is None:
        return  # what systemd itself says of it is seen where there is one
    command = tmp_path / "fairlead-agent.service"
    command.write_text(unit().replace(settings["ExecStart"].split()[0], sys.executable))
    done = subprocess.run([analyze, "verify", str(command)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_text_of_the_gateway_cannot_forge_a_notification(
    gateway: Gateway, agent_process: StartAgentProcess, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason of a close, in the service manager's status and in the log: one line, and nothing that steers."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    process = agent_process(*RUN, gateway.url)
    link = await gateway.linked()
    await link.socket.close(4004, "x\nMAINPID=1\r\x1b[2J\u202e\x9b")
    await manager.until(lambda messages: any("MAINPID" in text for text in messages))
    (message,) = {text for _, text in manager.messages if "MAINPID" in text}
    assert "x?MAINPID=1??[2J??" in message
    assert message.count("\n") == 0
    assert "x?MAINPID=1??[2J??" in process.log
    assert "\x1b" not in process.log
    await gateway.linked()


def test_a_system_other_than_linux_is_refused_with_the_reason() -> None:
    program = "import sys; sys.platform = 'win32'; import fairlead.agent"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: fairlead.agent needs Linux" in done.stderr
