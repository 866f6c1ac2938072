"""The built-in method `exec`: output as it is written, input, the exit code, and that no process is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.wire.messages import Ack, Chunk, Credit, End

from support.agent.fixtures import Gone, Serve, StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.waiting import until

MB = 1 << 20
C1, C2 = (f"exec-{os.getpid()}-{n}" for n in (1, 2))
"""Ids that no other process uses: all that bears the mark of a cancelled command is killed, whoever started it."""


@pytest.fixture
async def link(gateway: Gateway, serve: Serve) -> Link:
    serve(builtin_agent(gateway.url, "edge-1", "token-1"))
    return await gateway.linked()


Run = Callable[..., Any]


@pytest.fixture
def run(link: Link) -> Run:
    """Run a program to its end: (result, stdout, stderr)."""
    count = 0

    async def start(*argv: str, **more: object) -> tuple[dict[str, int], bytes, bytes]:
        nonlocal count
        count += 1
        await link.command(f"{C1}-{count}", "exec", {"argv": argv, **more})
        end = await link.end(f"{C1}-{count}")
        assert end.state == "ok", end
        return json.loads(end.payload), link.output(end.id), link.output(end.id, "stderr")

    return start


async def pid_in(path: Path) -> int:
    await until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


async def test_output_and_exit_code(run: Run) -> None:
    assert await run("sh", "-c", "echo out; echo err >&2; exit 3") == ({"exit_code": 3}, b"out\n", b"err\n")
    assert await run("true") == ({"exit_code": 0}, b"", b"")
    assert await run("false") == ({"exit_code": 1}, b"", b"")


async def test_output_bytes_are_passed_on_unchanged(run: Run) -> None:
    source = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"
    assert await run(sys.executable, "-c", source) == ({"exit_code": 0}, bytes(range(256)) * 1000, b"")


async def test_output_is_sent_as_it_is_written(link: Link) -> None:
    """The second line is written only when the first was seen."""
    await link.command(C1, "exec", {"argv": ["sh", "-c", "echo one; read x; echo two"], "stdin": True})
    await link.until(lambda: link.output(C1) == b"one\n")
    await link.feed(C1, b"\n")
    await link.end(C1)
    assert link.output(C1) == b"one\ntwo\n"


async def test_a_signal_that_ended_the_program_is_reported(run: Run) -> None:
    result, out, _ = await run("sh", "-c", "echo before; kill -9 $$")
    assert result == {"signal": 9}
    assert out == b"before\n"
    assert (await run("sh", "-c", "kill -TERM $$"))[0] == {"signal": 15}


async def test_no_shell_is_involved(run: Run) -> None:
    assert (await run("printf", "%s|", "$HOME", "a b", "*", ""))[1] == b"$HOME|a b|*||"


async def test_env_and_cwd_are_set(run: Run, tmp_path: Path) -> None:
    assert (await run("pwd", cwd=str(tmp_path)))[1].strip() == str(tmp_path.resolve()).encode()
    lines = (await run("env", env={"ADDED": "two words"}))[1].splitlines()
    assert b"ADDED=two words" in lines
    assert f"PATH={os.environ['PATH']}".encode() in lines


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"argv": ["/no/such/program"]}, "'/no/such/program': there is no such file"),
        ({"argv": ["no-such-program"]}, "'no-such-program': there is no such program in the PATH"),
        ({"argv": ["echo hi"]}, "'echo hi': there is no such program (there is no shell"),
        ({"argv": ["true"], "cwd": "/no/such/folder"}, "working directory '/no/such/folder': No such file"),
        ({"argv": ["/etc"]}, "/etc"),
        ({"argv": ["tr\0ue"]}, ""),
        ({"argv": ["true"], "env": {"a=b": "c"}}, ""),
        ({"argv": ["true"], "env": {"A": "\0"}}, ""),
        ({"argv": ["true", "x" * 300_000]}, ""),
    ],
    ids=["no-file", "not-in-path", "shell", "cwd", "folder", "nul", "env-name", "env-nul", "too-long"],
)
async def test_a_program_that_cannot_be_run_is_reported(link: Link, arguments: dict[str, object], named: str) -> None:
    await link.command(C1, "exec", arguments)
    end = await link.end(C1)
    assert (end.state, end.total) == ("error", 0)
    assert end.error is not None
    assert end.error.code == "exec_failed"
    assert named in end.error.message
    assert "Traceback" not in end.error.message


@pytest.mark.parametrize(
    "arguments", [{"argv": []}, {"argv": "true"}, {}, {"argv": ["true"], "shell": True}, {"argv": [1]}]
)
async def test_invalid_arguments_are_refused(link: Link, arguments: dict[str, object]) -> None:
    """Refused, or ended with that error: it never ran."""
    await link.command(C1, "exec", arguments)
    await link.until(
        lambda: bool(link.of(End, C1)) or (link.of(Ack, C1)[:1] != [] and link.of(Ack)[0].state == "refused")
    )
    answers: list[Ack | End] = [*link.of(Ack, C1), *link.of(End, C1)]
    errors = [m.error for m in answers if m.error is not None]
    assert [error.code for error in errors] == ["invalid_arguments"]
    assert "argv" in errors[0].message or "shell" in errors[0].message


async def test_input_reaches_the_program_until_its_end(link: Link) -> None:
    await link.command(C1, "exec", {"argv": ["cat"], "stdin": True})
    await link.feed(C1, b"one\n", b"\x00\xff")
    await link.until(lambda: link.output(C1) == b"one\n\x00\xff")
    await link.feed(C1, b"three")
    await link.feed_end(C1)
    end = await link.end(C1)
    assert json.loads(end.payload) == {"exit_code": 0}
    assert link.output(C1) == b"one\n\x00\xffthree"


async def test_input_may_be_larger_than_its_window(link: Link) -> None:
    """1 MB through `cat`: the gateway feeds as far as it was granted."""
    stream = await link.command(C1, "exec", {"argv": ["cat"], "stdin": True})
    sent = os.urandom(MB)
    for start in range(0, MB, 32 << 10):
        await link.until(lambda: stream.input_credit >= 32 << 10)
        await link.feed(C1, sent[start : start + (32 << 10)])
    await link.feed_end(C1)
    await link.end(C1)
    assert link.output(C1) == sent
    assert sum(c.bytes for c in link.of(Credit, C1)) <= MB


async def test_without_stdin_the_input_is_empty(run: Run) -> None:
    assert await run("cat") == ({"exit_code": 0}, b"", b"")


async def test_a_program_that_does_not_read_its_input_does_not_block_the_agent(link: Link) -> None:
    await link.command(C1, "exec", {"argv": ["sh", "-c", "exec 0<&-; echo up; sleep 0.2; echo done"], "stdin": True})
    await link.until(lambda: link.output(C1) == b"up\n")
    await link.feed(C1, *[b"x" * 30_000] * 8)
    end = await link.end(C1)
    assert json.loads(end.payload) == {"exit_code": 0}
    assert link.output(C1) == b"up\ndone\n"


async def test_input_for_a_program_that_has_ended_is_ignored(link: Link) -> None:
    await link.command(C1, "exec", {"argv": ["true"], "stdin": True})
    await link.feed(C1, b"nobody")
    await link.end(C1)
    await link.send(Chunk(id=C1, n=1, kind="stdin", payload=b"reads"), End(id=C1, total=2))
    await link.command(C2, "exec", {"argv": ["true"]})
    assert (await link.end(C2)).state == "ok"


# -- nothing is left behind ------------------------------------------------------------------------

FAMILY = """
setsid sh -c 'echo $$ > grandchild; exec sleep 1000' &
sleep 1000 &
echo $! > child
echo $$ > parent
wait
"""
IGNORES_SIGTERM = "trap '' TERM; echo $$ > parent; while :; do sleep 0.1; done"


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_all_descendants_are_killed(link: Link, tmp_path: Path, gone: Gone, how: str) -> None:
    """Also a grandchild in a session of its own, which no signal to the group reaches."""
    arguments = {"argv": ["sh", "-c", FAMILY], "cwd": str(tmp_path)}
    await link.command(C1, "exec", arguments, deadline=60_000 if how == "cancel" else 3_000)
    pids = [await pid_in(tmp_path / name) for name in ("parent", "child", "grandchild")]
    began = time.monotonic()
    if how == "cancel":
        await link.cancel(C1)
    end = await link.end(C1)
    assert end.state == ("cancelled" if how == "cancel" else "timeout")
    assert time.monotonic() - began < (10 if how == "cancel" else 13), "the protocol gives ten seconds"
    for pid in pids:
        await gone(pid)


async def test_a_program_that_ignores_sigterm_is_killed(link: Link, tmp_path: Path, gone: Gone) -> None:
    await link.command(C1, "exec", {"argv": ["sh", "-c", IGNORES_SIGTERM], "cwd": str(tmp_path)})
    pid = await pid_in(tmp_path / "parent")
    began = time.monotonic()
    await link.cancel(C1)
    assert (await link.end(C1)).state == "cancelled"
    assert time.monotonic() - began < 10, "the protocol gives ten seconds"
    await gone(pid)


async def test_a_program_may_clean_up_before_it_is_killed(link: Link, tmp_path: Path) -> None:
    source = "trap 'echo cleaned > mark; exit 0' TERM; echo $$ > parent; while :; do sleep 0.05; done"
    await link.command(C1, "exec", {"argv": ["sh", "-c", source], "cwd": str(tmp_path)})
    await pid_in(tmp_path / "parent")
    await link.cancel(C1)
    assert (await link.end(C1)).state == "cancelled"
    assert (tmp_path / "mark").read_text() == "cleaned\n"


@pytest.mark.parametrize("prefix", ["", "setsid "], ids=["child", "session"])
async def test_a_child_that_keeps_the_output_open_does_not_delay_the_end(
    link: Link, tmp_path: Path, prefix: str
) -> None:
    """As a daemon does that was started without a redirection: the program is over when it has exited."""
    source = f"{prefix}sleep 1000 & echo $! > child; echo started"
    began = time.monotonic()
    await link.command(C1, "exec", {"argv": ["sh", "-c", source], "cwd": str(tmp_path)})
    end = await link.end(C1)
    try:
        assert json.loads(end.payload) == {"exit_code": 0}
        assert link.output(C1) == b"started\n"
        assert time.monotonic() - began < 10, "the end waited for the child"
    finally:
        try:
            os.kill(await pid_in(tmp_path / "child"), signal.SIGKILL)
        except ProcessLookupError:
            pass


async def test_cancel_of_a_program_that_was_not_started_yet(link: Link, tmp_path: Path) -> None:
    """The cancel comes in the middle of the fork: nothing may run on."""
    for n in range(10):
        await link.command(f"{C1}-{n}", "exec", {"argv": ["sleep", f"10{os.getpid()}{n}"], "cwd": str(tmp_path)})
        await asyncio.sleep(0.0005 * n)
        await link.cancel(f"{C1}-{n}")
    for n in range(10):
        assert (await link.end(f"{C1}-{n}")).state == "cancelled"
    await until(lambda: not any(f"10{os.getpid()}" in "".join(p.cmdline()[1:2]) for p in _children()))


def _children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


# -- much output -----------------------------------------------------------------------------------


async def test_50_mb_to_a_slow_gateway_do_not_fill_the_agents_memory(
    gateway: Gateway, agent_process: StartAgentProcess
) -> None:
    """The program is read only as fast as its results are stored: both windows and the pipe hold it back."""
    process = agent_process("-m", "fairlead", "agent", "run", "--url", gateway.url, "--id", "edge-1")
    link = await gateway.linked()
    memory = psutil.Process(process.pid)
    await link.command(C2, "exec", {"argv": ["true"]})
    await link.end(C2)
    before = memory.memory_info().rss
    link.stores = False
    await link.command(C1, "exec", {"argv": ["head", "-c", str(50 * MB), "/dev/zero"]})
    largest = 0
    while not link.of(End, C1):
        await link.until(lambda: link.unstored > 0)
        largest = max(largest, memory.memory_info().rss)
        await link.store(link.unstored)
        await asyncio.sleep(0.002)  # the slowness of this gateway
    await link.store(link.unstored)
    assert sum(len(c.payload) for c in link.of(Chunk, C1)) == 50 * MB
    assert json.loads(link.of(End, C1)[0].payload) == {"exit_code": 0}
    assert largest - before < 6 * MB, f"{(largest - before) / MB:.1f} MB more"


async def test_a_program_waits_while_there_is_no_credit(link: Link) -> None:
    link.grants = False
    stream = await link.command(C1, "exec", {"argv": ["head", "-c", str(MB), "/dev/zero"]})
    await link.until(lambda: stream.credit_left < 64 << 10)
    # Another command has a window of its own.
    await link.command(C2, "exec", {"argv": ["echo", "hello"]})
    assert (await link.end(C2)).state == "ok"
    assert not link.of(End, C1)
    link.grants = True
    while not link.of(End, C1):
        granted = len(link.output(C1))
        await link.send(Credit(id=C1, bytes=100_000))
        stream.credit_left += 100_000
        await link.until(lambda g=granted: len(link.output(C1)) > g or bool(link.of(End, C1)))  # type: ignore[misc]
    assert link.output(C1) == bytes(MB)


async def test_sys_info_describes_the_host(link: Link) -> None:
    await link.command(C1, "sys.info")
    info = json.loads((await link.end(C1)).payload)
    assert info["os"] == sys.platform
    assert info["cpus"] == os.cpu_count()
    assert info["memory_bytes"] == pytest.approx(psutil.virtual_memory().total, rel=0.05)
    assert info["uptime_s"] == pytest.approx(time.time() - psutil.boot_time(), abs=60)
    assert len(info["load"]) == 3
    await link.command(C2, "sys.info", {"verbose": True})
    assert (await link.expect(Ack, C2)).state == "refused"
