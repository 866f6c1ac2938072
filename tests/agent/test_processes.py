"""Handlers in processes: each command has a fresh one, forked from a server that has imported the handlers once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent import Agent
from fairlead.agent.commands.processes import fork_server
from fairlead.wire.messages import End

from support.agent.agent_process import alive
from support.agent.fixtures import Gone, MakeModule, StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.waiting import until


async def payload(link: Link, command: str, method: str, arguments: dict[str, object] | None = None) -> Any:
    await link.command(command, method, arguments or {})
    end = await link.end(command)
    assert end.state == "ok", end
    return json.loads(end.payload)


CHANGES = """
import os, signal, sys
state = []
def look():
    return {
        "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "folder": os.getcwd(),
        "environment": os.environ.get("LEFT"), "umask": os.umask(0o22), "state": state,
        "hangup": str(signal.getsignal(signal.SIGHUP)), "stdout": os.readlink("/proc/self/fd/1"),
        "open": len(os.listdir("/proc/self/fd")), "arguments": sys.argv,
    }
def change():
    os.environ["LEFT"] = "behind"
    os.chdir("/")
    os.umask(0o77)
    state.append(1)
    sys.argv.append("more")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return os.getpid()
"""


async def test_nothing_that_a_handler_changes_in_its_process_reaches_the_next_command(
    agent: Agent, link: Link, module: MakeModule
) -> None:
    made = module(CHANGES)
    agent.command("look", run="process")(made.look)
    agent.command("change", run="process")(made.change)
    before = await payload(link, "c1", "look")
    changer = await payload(link, "c2", "change")
    after = await payload(link, "c3", "look")
    assert len({before.pop("pid"), changer, after.pop("pid")}) == 3
    assert before.pop("session") != after.pop("session")
    assert before == after


async def test_the_module_of_a_handler_is_imported_once_for_all_commands(
    agent: Agent, link: Link, module: MakeModule, tmp_path: Path
) -> None:
    log = tmp_path / "imports"
    made = module(f"import os\nwith open({str(log)!r}, 'a') as f: print(os.getpid(), file=f)\ndef work(): return 1\n")
    agent.command("work", run="process")(made.work)
    for command in ("c1", "c2", "c3"):
        await payload(link, command, "work")
    here, server = log.read_text().split()
    assert int(here) == os.getpid()
    assert int(server) != os.getpid()


async def test_arguments_that_no_socket_buffer_holds_reach_the_handler(
    agent: Agent, link: Link, module: MakeModule
) -> None:
    agent.command("length", run="process")(module("def length(text: str): return len(text)").length)
    assert await payload(link, "c1", "length", {"text": "x" * 700_000}) == 700_000


STARTS = """
import os, subprocess, sys, time
def work():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid
def wait(path: str):
    with open(path + ".new", "w") as f: f.write(f"{os.getpid()} {os.getppid()}")
    os.rename(path + ".new", path)
    time.sleep(1000)
def server():
    return os.getppid()
"""


async def test_what_a_handler_has_started_ends_with_its_command(
    agent: Agent, link: Link, module: MakeModule, gone: Gone
) -> None:
    agent.command("work", run="process")(module(STARTS).work)
    await gone(await payload(link, "c1", "work"))


async def pids_in(path: Path) -> tuple[int, int]:
    await until(path.exists)
    process, server = path.read_text().split()
    return int(process), int(server)


async def test_when_the_fork_server_is_killed_its_commands_fail_and_the_next_one_runs(
    agent: Agent, link: Link, module: MakeModule, tmp_path: Path, gone: Gone
) -> None:
    made = module(STARTS)
    agent.command("wait", run="process")(made.wait)
    agent.command("server", run="process")(made.server)
    await link.command("c1", "wait", {"path": str(tmp_path / "pids")})
    process, server = await pids_in(tmp_path / "pids")
    os.kill(server, signal.SIGKILL)
    end: End = await link.end("c1")
    assert end.error is not None
    assert (end.error.code, end.error.message) == ("handler_failed", "the handler's process ended without a result")
    await gone(process)
    assert await payload(link, "c2", "server") != server


async def test_the_fork_server_ends_when_it_is_idle_and_starts_again(
    agent: Agent, link: Link, module: MakeModule, gone: Gone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "IDLE_TIMEOUT", 0.01)
    agent.command("server", run="process")(module(STARTS).server)
    first = await payload(link, "c1", "server")
    await gone(first)
    assert await payload(link, "c2", "server") != first


AGENT = """
import sys
from fairlead.agent import Agent
from waiting import server, wait

if __name__ == "__main__":
    agent = Agent(sys.argv[1], "edge-1", "t")
    agent.command("wait", run="process")(wait)
    agent.command("server", run="process")(server)
    agent.run()
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
async def test_the_end_of_the_agent_ends_its_fork_server_and_all_processes(
    gateway: Gateway, agent_process: StartAgentProcess, tmp_path: Path, gone: Gone, how: int
) -> None:
    (tmp_path / "waiting.py").write_text(STARTS)
    (tmp_path / "waiting_agent.py").write_text(AGENT)
    process = agent_process(str(tmp_path / "waiting_agent.py"), gateway.url)
    link = await gateway.linked()
    await link.command("c1", "wait", {"path": str(tmp_path / "pids")})
    child, server = await pids_in(tmp_path / "pids")
    assert alive(child)
    assert await payload(link, "c2", "server") == server, "both come from one"
    process.signal(how)
    await gone(child)
    await gone(server)
    await process.exit_code()
