"""`proc.signal`, on real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.agent.builtin.options import ExecOptions, Options
from fairlead.wire.messages import End

from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.waiting import WAIT


@pytest.fixture
async def link(gateway: Gateway, serve: Serve) -> Link:
    serve(builtin_agent(gateway.url, "edge-1", "token-1"))
    return await gateway.linked()


async def signalled(link: Link, **arguments: object) -> End:
    id = f"signal-{len(link.of(End))}"
    await link.command(id, "proc.signal", arguments)
    return await link.end(id)


async def test_a_signal_reaches_one_process_and_no_other(link: Link) -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(argv) as first, subprocess.Popen(argv) as second:
        try:
            await link.command("list", "proc.list")
            await link.end("list")
            started = {row["pid"]: row["started"] for row in link.rows("list")}
            wrong = await signalled(link, pid=first.pid, started=started[first.pid] - 60)
            assert wrong.error is not None
            assert wrong.error.code == "not_found"
            assert "another process has its id" in wrong.error.message
            end = await signalled(link, pid=first.pid, signal="USR1", started=started[first.pid])
            assert json.loads(end.payload) == {"pid": first.pid, "signal": "USR1", "argv": argv}
            assert first.wait(WAIT) == -signal.SIGUSR1
            assert second.poll() is None
            gone = await signalled(link, pid=first.pid)
            assert gone.error is not None
            assert gone.error.code == "not_found"
        finally:
            for process in (first, second):
                if process.poll() is None:
                    process.kill()


async def test_the_agent_its_parent_and_the_first_process_get_none(link: Link) -> None:
    for pid in (1, os.getpid(), os.getppid()):
        end = await signalled(link, pid=pid, signal="CONT")
        assert end.error is not None
        assert end.error.code == "process_forbidden"


def test_it_is_off_where_exec_is_limited() -> None:
    for options in (Options(exec=ExecOptions(enabled=False)), Options(exec=ExecOptions(allow=("/bin/true",)))):
        for method in ("proc.signal", "service.start", "service.stop", "service.restart"):
            assert not options.enabled(method)
            assert options.reason_disabled(method).startswith("exec")
        assert options.enabled("service.status")
        assert options.enabled("log.tail")
