"""`shell`: a real terminal, its input and size, and that nothing is left behind however it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.agent.builtin.options import ExecOptions, MethodOptions, Options, ShellOptions
from fairlead.wire.messages import Ack, Credit, End

from support.agent.fixtures import Gone, Serve, StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.waiting import until

MB = 1 << 20
C1 = f"shell-{os.getpid()}"


@pytest.fixture
async def link(gateway: Gateway, serve: Serve) -> Link:
    serve(builtin_agent(gateway.url, "edge-1", "token-1"))
    return await gateway.linked()


def typed(data: bytes) -> bytes:
    return b"\x00" + data


def resized(cols: int, rows: int) -> bytes:
    return b"\x01" + json.dumps({"cols": cols, "rows": rows}).encode()


def screen(link: Link, id: str = C1) -> bytes:
    return link.output(id, "pty")


async def pid_in(path: Path) -> int:
    await until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


async def test_a_shell_answers_its_input(link: Link) -> None:
    await link.command(C1, "shell", {"argv": ["sh", "-i"], "env": {"PS1": "ready> "}})
    await link.until(lambda: b"ready> " in screen(link))
    await link.feed(C1, typed(b"echo $((6 * 7)) $TERM; tty\n"))
    await link.until(lambda: b"42 xterm-256color" in screen(link))
    await link.until(lambda: b"/dev/pts/" in screen(link))
    await link.feed(C1, typed(b"exit 3\n"))
    end = await link.end(C1)
    assert json.loads(end.payload) == {"exit_code": 3}


async def test_the_pty_is_the_controlling_terminal(link: Link) -> None:
    """Ctrl-C reaches the program in the foreground, which only a controlling terminal can do."""
    source = "trap 'echo caught; exit 7' INT; echo up; read x < /dev/tty"
    await link.command(C1, "shell", {"argv": ["sh", "-c", source]})
    await link.until(lambda: b"up" in screen(link))
    await link.feed(C1, typed(b"\x03"))
    end = await link.end(C1)
    assert b"caught" in screen(link)
    assert json.loads(end.payload) == {"exit_code": 7}


async def test_the_terminal_has_the_size_that_was_asked_for(link: Link) -> None:
    source = "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done"
    await link.command(C1, "shell", {"argv": ["sh", "-c", source], "cols": 132, "rows": 50})
    await link.until(lambda: b"50 132" in screen(link))
    await link.feed(C1, resized(100, 30))
    await link.end(C1)
    assert b"30 100" in screen(link)


async def test_cwd_and_term_are_set_and_a_signal_is_reported(link: Link, tmp_path: Path) -> None:
    source = "pwd; echo $TERM; kill -9 $$"
    await link.command(C1, "shell", {"argv": ["sh", "-c", source], "cwd": str(tmp_path), "term": "dumb"})
    end = await link.end(C1)
    assert json.loads(end.payload) == {"signal": 9}
    assert screen(link) == f"{tmp_path.resolve()}\r\ndumb\r\n".encode()


async def test_the_login_shell_is_the_default_and_ends_with_its_input(link: Link) -> None:
    await link.command(C1, "shell", {"env": {"PS1": "$ "}})
    await link.feed(C1, typed(b"echo re''sult\n"))
    await link.until(lambda: b"result" in screen(link))
    await link.feed_end(C1)
    end = await link.end(C1)
    assert json.loads(end.payload) == {"exit_code": 0}


async def test_all_output_arrives_before_the_end(link: Link) -> None:
    """More than the kernel's buffers hold, by a program that exits at once and a reader that takes its time."""
    link.grants = False
    source = f"import sys; sys.stdout.write('x' * {MB} + 'END')"
    stream = await link.command(C1, "shell", {"argv": [sys.executable, "-c", source]})
    await link.until(lambda: stream.credit_left == 0)
    held = len(screen(link))
    assert not link.of(End, C1), "it did not wait for its reader"
    link.grants = True
    await link.send(Credit(id=C1, bytes=2 * MB))
    stream.credit_left += 2 * MB
    await link.end(C1)
    assert held < MB
    assert screen(link) == b"x" * MB + b"END"


async def test_output_left_in_the_pty_after_the_exit_arrives(link: Link) -> None:
    link.grants = False
    stream = await link.command(C1, "shell", {"argv": ["sh", "-c", "head -c 262144 /dev/zero; printf LAST"]})
    await link.until(lambda: stream.credit_left == 0)
    await asyncio.sleep(1.0)  # the program has exited, its last words wait in the terminal
    await link.send(Credit(id=C1, bytes=MB))
    stream.credit_left += MB
    await link.end(C1)
    assert screen(link) == bytes(262144) + b"LAST"


async def test_a_child_that_keeps_the_terminal_does_not_delay_the_end(link: Link, tmp_path: Path) -> None:
    source = "setsid sh -c 'trap \"\" HUP; echo $$ > child; while :; do echo noise; sleep 0.01; done' & sleep 0.3"
    began = time.monotonic()
    await link.command(C1, "shell", {"argv": ["sh", "-c", source], "cwd": str(tmp_path)})
    end = await link.end(C1)
    try:
        assert json.loads(end.payload) == {"exit_code": 0}
        assert time.monotonic() - began < 10
    finally:
        try:
            os.kill(await pid_in(tmp_path / "child"), signal.SIGKILL)
        except ProcessLookupError:
            pass  # the hung-up terminal has ended it


# -- its end from outside --------------------------------------------------------------------------

JOBS = "setsid sleep 1000 & echo $! > far; sleep 1000 & echo $! > near; echo $$ > leader; wait"


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_all_descendants_are_killed(link: Link, tmp_path: Path, gone: Gone, how: str) -> None:
    arguments = {"argv": ["sh", "-c", JOBS], "cwd": str(tmp_path)}
    await link.command(C1, "shell", arguments, deadline=60_000 if how == "cancel" else 3_000)
    pids = [await pid_in(tmp_path / name) for name in ("leader", "near", "far")]
    began = time.monotonic()
    if how == "cancel":
        await link.cancel(C1)
    assert (await link.end(C1)).state == ("cancelled" if how == "cancel" else "timeout")
    assert time.monotonic() - began < (10 if how == "cancel" else 13), "the protocol gives ten seconds"
    for pid in pids:
        await gone(pid)


async def test_sighup_is_sent_before_sigkill(link: Link, tmp_path: Path) -> None:
    source = "trap 'echo saved > mark; exit' HUP; echo $$ > leader; while :; do sleep 0.05; done"
    await link.command(C1, "shell", {"argv": ["sh", "-c", source], "cwd": str(tmp_path)})
    await pid_in(tmp_path / "leader")
    await link.cancel(C1)
    assert (await link.end(C1)).state == "cancelled"
    assert (tmp_path / "mark").read_text() == "saved\n"


async def test_shells_end_with_the_agent(
    gateway: Gateway, agent_process: StartAgentProcess, tmp_path: Path, gone: Gone
) -> None:
    process = agent_process("-m", "fairlead", "agent", "run", "--url", gateway.url, "--id", "edge-1")
    link = await gateway.linked()
    await link.command(C1, "shell", {"argv": ["sh", "-c", JOBS], "cwd": str(tmp_path)})
    pids = [await pid_in(tmp_path / name) for name in ("leader", "near", "far")]
    process.signal(signal.SIGTERM)
    assert await process.exit_code() == 0
    for pid in pids:
        await gone(pid)


async def test_a_program_that_closes_its_terminal_is_ended(link: Link, tmp_path: Path, gone: Gone) -> None:
    """The program closes its terminal and lives on: nobody could see or stop it."""
    source = "echo $$ > leader; exec sleep 1000 < /dev/null > /dev/null 2>&1"
    await link.command(C1, "shell", {"argv": ["sh", "-c", source], "cwd": str(tmp_path)})
    end = await link.end(C1)
    assert end.error is not None
    assert end.error.code == "pty_gone"
    await gone(await pid_in(tmp_path / "leader"))


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        (b"\x02x", "byte 2"),
        (b"ls\n", "byte 108"),
        (b"\x01{}", "cols"),
        (b"\x01[", "resize"),
        (b"\x01" + b"\xff", "resize"),
        (resized(0, 24), "cols"),
        (resized(80, 70_000), "rows"),
    ],
)
async def test_invalid_input_is_refused(link: Link, tmp_path: Path, gone: Gone, chunk: bytes, words: str) -> None:
    await link.command(C1, "shell", {"argv": ["sh", "-c", "echo $$ > leader; exec cat"], "cwd": str(tmp_path)})
    pid = await pid_in(tmp_path / "leader")
    await link.feed(C1, chunk)
    end = await link.end(C1)
    assert end.error is not None
    assert end.error.code == "invalid_input"
    assert words in end.error.message
    await gone(pid)


async def test_a_shell_that_cannot_be_run_is_reported(link: Link) -> None:
    await link.command(C1, "shell", {"argv": ["/no/such/program"]})
    end = await link.end(C1)
    assert end.error is not None
    assert end.error.code == "exec_failed"
    assert "/no/such/program" in end.error.message
    await link.command("dir", "shell", {"argv": ["sh"], "cwd": "/no/such/folder"})
    end = await link.end("dir")
    assert end.error is not None
    assert end.error.code == "exec_failed"


async def test_at_most_32_shells_are_open(link: Link) -> None:
    for n in range(32):
        await link.command(f"{C1}-{n}", "shell", {"argv": ["cat"]})
    await link.command("one-more", "shell", {"argv": ["cat"]})
    end = await link.end("one-more")
    assert end.error is not None
    assert end.error.code == "busy"
    for n in range(32):
        await link.cancel(f"{C1}-{n}")
    for n in range(32):
        assert (await link.end(f"{C1}-{n}")).state == "cancelled"


# -- confined --------------------------------------------------------------------------------------


async def test_disabled_methods_are_refused_with_their_setting(
    gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    off = Options(exec=ExecOptions(enabled=False), shell=ShellOptions(enabled=False), proc_list=MethodOptions(False))
    serve(builtin_agent(gateway.url, "edge-1", "token-1", options=off))
    assert "built-in methods: facts.refresh, file.get, file.put, log.tail, " in caplog.text
    assert "service.status, sys.info; disabled: exec, " in caplog.text
    off_too = "proc.list, proc.signal, script, service.restart, service.start, service.stop, shell"
    assert f"disabled: exec, {off_too}" in caplog.text
    link = await gateway.linked()
    for method, key in (("exec", "exec.enabled"), ("shell", "shell.enabled"), ("proc.list", "proc_list.enabled")):
        await link.command(method, method, {"argv": ["true"]})
        ack = await link.expect(Ack, method)
        assert ack.error is not None
        assert (ack.state, ack.error.code) == ("refused", "unknown_method")
        assert "configuration disables" in ack.error.message
        assert key in ack.error.message
    await link.command("other", "nothing")
    ack = await link.expect(Ack, "other")
    assert ack.error is not None
    assert "has no method 'nothing'" in ack.error.message


async def test_only_programs_of_exec_allow_run(gateway: Gateway, serve: Serve, tmp_path: Path) -> None:
    disguise = tmp_path / "uname"
    disguise.symlink_to("/bin/sh")
    serve(
        builtin_agent(
            gateway.url, "edge-1", "token-1", options=Options(exec=ExecOptions(allow=("/usr/bin/uname", "/bin/echo")))
        )
    )
    link = await gateway.linked()
    for id, argv in (("a", ["uname", "-s"]), ("b", ["/usr/bin/uname", "-s"]), ("c", ["/bin/uname", "-s"])):
        await link.command(id, "exec", {"argv": argv})
        assert (await link.end(id)).state == "ok"
        assert link.output(id) == b"Linux\n"
    wrong: list[dict[str, object]] = [
        {"argv": ["sh", "-c", "id"]},
        {"argv": [str(disguise), "-c", "id"]},
        {"argv": ["./uname", "-c", "id"], "cwd": str(tmp_path)},
        {"argv": ["uname"], "env": {"PATH": str(tmp_path)}},
        {"argv": ["uname"], "env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"argv": ["no-such-program"]},
    ]
    for n, arguments in enumerate(wrong):
        await link.command(f"w{n}", "exec", arguments)
        end = await link.end(f"w{n}")
        assert end.error is not None, arguments
        assert end.error.code == "program_forbidden"
        assert end.total == 0


async def test_the_program_that_was_checked_is_the_one_that_runs(
    gateway: Gateway, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PATH with the working folder in it: the program's folder is the caller's choice, the agent's is not."""
    disguise = tmp_path / "uname"
    disguise.write_text("#!/bin/sh\necho disguised\n")
    disguise.chmod(0o755)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    serve(builtin_agent(gateway.url, "edge-1", "token-1", options=Options(exec=ExecOptions(allow=("/usr/bin/uname",)))))
    link = await gateway.linked()
    await link.command("a", "exec", {"argv": ["uname"], "cwd": str(tmp_path)})
    await link.end("a")
    assert link.output("a") == b"Linux\n"


async def test_the_shell_may_be_set_in_the_configuration(gateway: Gateway, serve: Serve) -> None:
    given = Options(shell=ShellOptions(argv=("sh", "-c", "echo menu")))
    serve(builtin_agent(gateway.url, "edge-1", "token-1", options=given))
    link = await gateway.linked()
    await link.command("a", "shell")
    await link.end("a")
    assert screen(link, "a") == b"menu\r\n"
    for id, arguments in (("b", {"argv": ["sh"]}), ("c", {"env": {"ENV": "/tmp/x"}})):
        await link.command(id, "shell", arguments)
        end = await link.end(id)
        assert end.error is not None
        assert end.error.code == "program_forbidden"
