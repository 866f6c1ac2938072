"""Commands that are ended by their deadline or a cancel leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from fairlead.agent import Agent, Command
from fairlead.wire.messages import Ack, Chunk, End

from support.agent.fixtures import Gone
from support.agent.scripted_link import Link
from support.waiting import until

SLEEPER = """
import os, time

def sleep(path: str):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(1000)

def endless(path: str):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    while True:
        yield "x" * 1000
"""

PidIn = Callable[[str], Awaitable[int]]


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = f"sleeper_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SLEEPER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return import_module(name)


@pytest.fixture
def pid_in(tmp_path: Path) -> PidIn:
    """Wait until a child has written its pid."""

    async def read(name: str) -> int:
        await until(lambda: (tmp_path / name).exists() and (tmp_path / name).read_text().strip())
        return int((tmp_path / name).read_text())

    return read


def check(end: End, state: str, code: str) -> None:
    assert end.state == state
    assert end.error is not None
    assert end.error.code == code


# -- deadlines -------------------------------------------------------------------------------------


async def test_a_coroutine_ends_at_its_deadline(agent: Agent, link: Link) -> None:
    cleaned: list[bool] = []

    @agent.command("sleep")
    async def sleep() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            cleaned.append(True)

    began = time.monotonic()
    await link.command("c1", "sleep", deadline=200)
    check(await link.end("c1"), "timeout", "deadline")
    assert time.monotonic() - began >= 0.19
    assert cleaned == [True]


async def test_a_deadline_of_zero_ends_at_once(agent: Agent, link: Link) -> None:
    @agent.command("sleep")
    async def sleep() -> None:
        await asyncio.sleep(1000)

    await link.command("c1", "sleep", deadline=0)
    check(await link.end("c1"), "timeout", "deadline")
    assert link.of(Ack, "c1")[0].state == "accepted"


async def test_a_timeout_error_of_the_handler_itself_is_reported_as_its_error(agent: Agent, link: Link) -> None:
    @agent.command("impatient")
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1000)

    await link.command("c1", "impatient")
    check(await link.end("c1"), "error", "handler_failed")


async def test_a_thread_that_continues_after_the_deadline_does_no_harm(agent: Agent, link: Link) -> None:
    """It cannot be stopped: its command ends in time, what it still yields is dropped, others have their turn."""
    go = threading.Event()
    seen: list[str] = []

    @agent.command("stubborn")
    def stubborn() -> Iterator[str]:
        yield "before"
        go.wait(20)
        seen.append("woke up")
        yield "after"
        seen.append("never")

    @agent.command("quick")
    def quick() -> int:
        return 1

    await link.command("c1", "stubborn", deadline=1000)
    check(await link.end("c1"), "timeout", "deadline")
    await link.command("c2", "quick")
    assert (await link.end("c2")).state == "ok"
    go.set()
    await until(lambda: seen)
    await link.command("c3", "quick")
    assert (await link.end("c3")).state == "ok"
    assert link.output("c1") == b"before"
    assert len(link.of(End, "c1")) == 1
    assert seen == ["woke up"]


async def test_a_thread_can_ask_whether_it_is_cancelled(agent: Agent, link: Link) -> None:
    stopped = threading.Event()

    @agent.command("polite")
    def polite(command: Command) -> None:
        while not command.cancelled:
            time.sleep(0.01)
        stopped.set()

    await link.command("c1", "polite")
    await link.expect(Ack, "c1")
    await link.cancel("c1")
    assert (await link.end("c1")).state == "cancelled"
    assert await asyncio.to_thread(stopped.wait, 10)


@pytest.mark.parametrize("how", ["deadline", "cancel"])
@pytest.mark.parametrize("method", ["sleep", "endless"])
async def test_a_handler_in_a_process_is_killed_at_the_deadline(
    agent: Agent, link: Link, sleeper: ModuleType, tmp_path: Path, pid_in: PidIn, gone: Gone, how: str, method: str
) -> None:
    agent.command(method, run="process")(getattr(sleeper, method))
    # The deadline leaves time for a fresh interpreter on a busy machine.
    await link.command("c1", method, {"path": str(tmp_path / "pid")}, deadline=5000 if how == "deadline" else 60_000)
    pid = await pid_in("pid")
    if how == "cancel":
        await link.cancel("c1")
        check(await link.end("c1"), "cancelled", "cancelled")
    else:
        check(await link.end("c1"), "timeout", "deadline")
    await gone(pid)


async def test_processes_that_were_killed_free_their_slots(
    agent: Agent, link: Link, sleeper: ModuleType, tmp_path: Path
) -> None:
    """More than any agent would run at once: those that wait get their turn, or are cancelled where they wait."""
    agent.command("sleep", run="process")(sleeper.sleep)
    commands = [f"c{n}" for n in range(20)]
    for command in commands:
        await link.command(command, "sleep", {"path": str(tmp_path / command)})
    await link.until(lambda: len(link.of(Ack)) == 20)
    for command in commands:
        await link.cancel(command)
    for command in commands:
        assert (await link.end(command)).state == "cancelled"
    await link.command("last", "sleep", {"path": str(tmp_path / "last")}, deadline=4000)
    assert (await link.end("last")).state == "timeout"
    assert (tmp_path / "last").exists()


# -- cancel ----------------------------------------------------------------------------------------


async def test_cancel_reaches_a_coroutine(agent: Agent, link: Link) -> None:
    @agent.command("stream")
    async def stream() -> AsyncIterator[str]:
        try:
            yield "first"
            await asyncio.sleep(1000)
        finally:
            cleaned.append(True)

    cleaned: list[bool] = []
    await link.command("c1", "stream")
    await link.expect(Chunk, "c1")
    await link.cancel("c1")
    end = await link.end("c1")
    check(end, "cancelled", "cancelled")
    assert end.total == 1
    assert cleaned == [True]


async def test_cancel_that_arrives_with_the_command(agent: Agent, link: Link) -> None:
    """Both come in one read of the socket: the command has not taken its first step yet."""

    @agent.command("sleep")
    async def sleep() -> None:
        await asyncio.sleep(1000)

    @agent.command("work")
    def work() -> None:
        time.sleep(0.01)

    for method in ("sleep", "work"):
        for n in range(20):
            await link.command(f"{method}{n}", method)
            await link.cancel(f"{method}{n}")
    for n in range(20):
        check(await link.end(f"sleep{n}"), "cancelled", "cancelled")
        assert (await link.end(f"work{n}")).state in ("ok", "cancelled")
    # The slots of threads are free again.
    await link.command("last", "work")
    assert (await link.end("last")).state == "ok"


async def test_cancel_may_be_repeated_and_an_unknown_command_is_ignored(agent: Agent, link: Link) -> None:
    @agent.command("tidy")
    async def tidy() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)

    cleaned: list[bool] = []
    await link.cancel("never-seen")
    await link.command("c1", "tidy")
    await link.expect(Ack, "c1")
    await link.cancel("c1")
    await link.cancel("c1")
    assert (await link.end("c1")).state == "cancelled"
    await link.cancel("c1")
    await link.command("c2", "tidy", deadline=50)
    assert (await link.end("c2")).state == "timeout"
    assert cleaned == [True, True]
    assert len(link.of(End)) == 2


async def test_cancel_frees_a_handler_that_waits_for_credit(agent: Agent, link: Link) -> None:
    link.grants = False

    @agent.command("endless")
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 10_000

    @agent.command("thread")
    def thread() -> Iterator[bytes]:
        while True:
            yield b"x" * 10_000

    for method in ("endless", "thread"):
        stream = await link.command(method, method)
        await link.until(lambda stream=stream: stream.credit_left < 10_000)  # type: ignore[misc]
        await link.cancel(method)
        end = await link.end(method)
        assert end.state == "cancelled"
        assert end.total == len(link.of(Chunk, method))


async def test_cancel_frees_a_handler_that_waits_for_input(agent: Agent, link: Link) -> None:
    @agent.command("read")
    async def read(command: Command) -> None:
        async for data in command.stdin:
            await command.write("stdout", data)

    await link.command("c1", "read")
    await link.feed("c1", b"hello")
    await link.until(lambda: link.output("c1") == b"hello")
    await link.cancel("c1")
    assert (await link.end("c1")).state == "cancelled"


async def test_a_handler_that_refuses_to_be_cancelled_ends_with_its_own_result(agent: Agent, link: Link) -> None:
    """The protocol: `cancelled` unless it ended otherwise at that moment. Whatever is said, there is one end."""

    @agent.command("finish")
    async def finish() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass
        return "finished"

    await link.command("c1", "finish")
    await link.expect(Ack, "c1")
    await link.cancel("c1")
    end = await link.end("c1")
    if end.state == "ok":
        assert json.loads(end.payload) == "finished"
    else:
        assert end.state == "cancelled"


async def test_a_handler_that_fails_while_it_is_cancelled_ends(agent: Agent, link: Link) -> None:
    @agent.command("fail")
    async def fail() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            raise RuntimeError("cleaning failed")

    await link.command("c1", "fail")
    await link.expect(Ack, "c1")
    await link.cancel("c1")
    assert (await link.end("c1")).state in ("cancelled", "error")
    await link.command("c2", "fail", deadline=50)
    assert (await link.end("c2")).state in ("timeout", "error")


# -- many ------------------------------------------------------------------------------------------


async def test_handlers_beyond_the_number_of_threads_wait(agent: Agent, link: Link) -> None:
    running = 0
    most = 0
    lock = threading.Lock()

    @agent.command("work")
    def work(n: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return n

    commands = [f"c{n}" for n in range(50)]
    for n, command in enumerate(commands):
        await link.command(command, "work", {"n": n})
    for n, command in enumerate(commands):
        assert json.loads((await link.end(command)).payload) == n
    assert 2 <= most <= 64


async def test_commands_beyond_the_queue_are_refused_as_busy(agent: Agent, link: Link) -> None:
    """A refusal that is temporary: the platform may try again, the agent holds nothing."""
    go = threading.Event()

    @agent.command("work")
    def work() -> None:
        go.wait(20)

    commands = [f"c{n}" for n in range(400)]
    try:
        for command in commands:
            await link.command(command, "work")
        await link.until(lambda: len(link.of(Ack)) == 400)
    finally:
        go.set()
    acks = {ack.id: ack for ack in link.of(Ack)}
    refused = [ack for ack in acks.values() if ack.state == "refused"]
    assert refused
    for ack in refused:
        assert ack.error is not None
        assert (ack.error.code, ack.error.temporary) == ("busy", True)
    for command in commands:
        if acks[command].state == "accepted":
            assert (await link.end(command)).state == "ok"
