"""`fairlead exec` and `fairlead results`: a remote program's output here, its exit code ours.

Called by `main`. Octets pass as they are, stdout to stdout and stderr to stderr. Ctrl-C asks the gateway to
cancel and waits for the end, because a program that is merely no longer watched goes on working; a second
Ctrl-C leaves at once and says so. Closing the connection never cancels anything.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click

from fairlead.cli.connection import api_options, connect

if TYPE_CHECKING:
    from fairlead.cli.follow import Follower
    from fairlead.client import Chunk, Client, End

FAILED, OFFLINE, DEADLINE, INTERRUPTED = 1, 3, 4, 130
CANCEL_TIMEOUT = 10.0
"""Seconds: the time an agent has to end a cancelled program."""


@click.command("exec", short_help="Run a program on an agent.", context_settings={"allow_interspersed_args": False})
@api_options
@click.option(
    "--deadline",
    type=click.FloatRange(min=0.1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Time for all of it.",
)
@click.option("--queue", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Wait so long for an offline agent.")
@click.option("--lane", type=click.Choice(["interactive", "bulk"]), default="interactive", show_default=True)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Set in the program's environment; repeatable.")
@click.option("--cwd", metavar="FOLDER", help="The program's working directory.")
@click.option("-n", "--no-stdin", is_flag=True, help="Leave stdin alone, though something is piped into it.")
@click.argument("agent")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def exec_(
    ctx: click.Context,
    api: str,
    token: str | None,
    deadline: float,
    queue: float | None,
    lane: str,
    env: tuple[str, ...],
    cwd: str | None,
    no_stdin: bool,
    agent: str,
    argv: tuple[str, ...],
) -> None:
    """Run a program on an agent: fairlead exec agent-1 -- uname -a

    Output comes as it is written. What is piped in goes to the program's stdin. Ctrl-C cancels the program
    and waits up to 10 s for its end, a second Ctrl-C leaves it.
    """
    from fairlead.cli.follow import Follower
    from fairlead.wire.identity import check_agent_id

    check_agent_id(agent)
    if argv[0] == "--":  # what follows the agent is not parsed, lest `ls -l` be an option of ours
        argv = argv[1:]
    if not argv:
        raise click.UsageError("no program was named: fairlead exec AGENT -- PROGRAM [ARGUMENT]...")
    pairs = dict(one.partition("=")[::2] for one in env)
    if wrong := [one for one in env if "=" not in one or one.startswith("=")]:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE", param_hint="--env")
    stdin = not no_stdin and _is_piped()
    request = {
        "agent": agent,
        "method": "exec",
        "payload": {"argv": argv, "env": pairs, "cwd": cwd, "stdin": stdin},
        "deadline": deadline,
        "lane": lane,
        "on_offline": "fail" if queue is None else {"queue": queue},
    }
    key = os.urandom(16).hex()
    with connect(api, token) as client, Follower(client, lambda: client.command(request, key)) as follower:
        ctx.exit(_watch(client, follower, stdin, cancels=True))


@click.command()
@api_options
@click.option("--from", "start", type=click.IntRange(min=0), default=0, show_default=True, metavar="OFFSET")
@click.option("--follow", is_flag=True, help="Wait for what is still to come, until the command's end.")
@click.argument("command", metavar="ID")
@click.pass_context
def results(ctx: click.Context, api: str, token: str | None, start: int, follow: bool, command: str) -> None:
    """Show the results of command ID, as `exec` would have shown them."""
    from fairlead.cli.follow import Follower
    from fairlead.client import Chunk, End
    from fairlead.wire.identity import check_command_id

    command = check_command_id(command)
    with connect(api, token) as client:
        if follow:
            with Follower(client, None, command, start) as follower:
                ctx.exit(_watch(client, follower, stdin=False, cancels=False))
        with client.results(command, start, follow=False) as lines:
            for line in lines:
                if isinstance(line, Chunk):
                    _show(line)
                elif isinstance(line, End):
                    ctx.exit(_conclude(line, command))
    _talk(f"the command has not ended; `fairlead results {command} --follow` waits for it")


def _watch(client: Client, follower: Follower, stdin: bool, cancels: bool) -> int:
    """Show all lines; the exit code."""
    from fairlead.cli.follow import Interrupt, Overdue
    from fairlead.cli.stdin import Stdin
    from fairlead.client import Chunk, End, Started

    forward: Stdin | None = None
    interrupted = cancelled = False
    try:
        with _interrupts(follower):
            for line in follower:
                if isinstance(line, Chunk):
                    _show(line)
                elif isinstance(line, Started) and stdin and forward is None:
                    forward = Stdin(client, line.id, _talk)
                    forward.start()
                elif isinstance(line, End):
                    return _conclude(line, follower.command)
                elif isinstance(line, Interrupt):
                    if not cancels:
                        return INTERRUPTED
                    interrupted = True
                    follower.patience = time.monotonic() + CANCEL_TIMEOUT
                    _talk("cancelling; Ctrl-C again leaves at once")
                if interrupted and not cancelled and follower.command:
                    cancelled = True
                    _cancel(client, follower.command)
    except Overdue:
        _talk(f"no end came within {CANCEL_TIMEOUT:g} s of the cancel; {_look(follower.command)}")
        return INTERRUPTED
    except KeyboardInterrupt:
        _talk(f"left; {_look(follower.command)}")
        return INTERRUPTED
    except BrokenPipeError:
        if cancels and follower.command:
            _cancel(client, follower.command).join(CANCEL_TIMEOUT)
        raise
    finally:
        if forward is not None:
            forward.close()
    raise AssertionError("a follower ends with an end or an error")


@contextmanager
def _interrupts(follower: Follower) -> Iterator[None]:
    """The first Ctrl-C is told to the follower, the second is a KeyboardInterrupt."""
    seen = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True
        follower.interrupt()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _cancel(client: Client, command: str) -> threading.Thread:
    """Ask for the cancel beside the stream, whose lines go on."""
    from fairlead.errors import FairleadError

    def ask() -> None:
        try:
            client.cancel(command)
        except FairleadError as e:
            _talk(f"the cancel did not reach the gateway: {e.message}")

    thread = threading.Thread(target=ask, name="cancel", daemon=True)
    thread.start()
    return thread


def _show(chunk: Chunk) -> None:
    fd = 2 if chunk.kind in ("stderr", "log") else 1
    data = memoryview(chunk.data)
    while data:
        data = data[os.write(fd, data) :]


def _conclude(end: End, command: str) -> int:
    """Say what the user must know beside the output; the exit code."""
    if end.truncated:
        _talk("the output was longer than the gateway keeps (output_limit), its rest is lost")
    if end.error is not None:
        _talk(f"{end.agent}: {end.error.message or end.error.code}")
    if end.state == "cancelled":
        _talk("cancelled")
        return INTERRUPTED
    if end.state in ("timeout", "expired"):
        word = "its deadline passed" if end.state == "timeout" else "it was never delivered within its time"
        _talk(f"{end.agent}: {word}; --deadline or --queue gives it more ({_look(command)})")
        return DEADLINE
    if end.state == "offline":
        _talk(f"{end.agent} is offline; `fairlead agents ls` says since when, --queue SECONDS waits for it")
        return OFFLINE
    remote = end.exit()
    if remote.signal:
        _talk(f"{end.agent}: the program was ended by signal {remote.signal}")
        return 128 + remote.signal
    if remote.exit_code is not None:
        # Only eight bits of an exit code arrive at a shell; none but 0 may arrive as 0.
        return remote.exit_code & 0xFF or (FAILED if remote.exit_code else 0)
    return 0 if end.state == "ok" else FAILED


def _look(command: str) -> str:
    return f"`fairlead results {command}` shows what came" if command else "the gateway gave it no id yet"


def _is_piped() -> bool:
    """Whether something can be read from stdin that nobody types. A closed stdin is not."""
    try:
        return not os.isatty(0) and os.fstat(0) is not None
    except OSError:
        return False


def _talk(text: str) -> None:
    print(f"fairlead: {text}", file=sys.stderr, flush=True)
