"""Calls that wait for a disk: their results, and that a cancelled caller leaves no call behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fairlead.agent.builtin.files.disk_threads import CALLS, DiskThreads


class BlockingCall:
    """A call that blocks its thread until it is released."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.ended = threading.Event()
        self._go = threading.Event()

    def call(self) -> str:
        self.began.set()
        self._go.wait(20)
        self.ended.set()
        return "done"

    async def in_it(self) -> None:
        await asyncio.to_thread(self.began.wait, 20)

    def let_go(self) -> None:
        self._go.set()


async def test_the_result_or_error_of_the_call_is_passed_on() -> None:
    disk = DiskThreads()
    assert await disk.run(int, "7", base=8) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await disk.run(int, "x")


async def test_a_cancelled_caller_waits_for_the_thread() -> None:
    """The descriptor that it works on must not be closed, and given to another file, meanwhile."""
    slow = BlockingCall()
    task = asyncio.create_task(DiskThreads().run(slow.call))
    await slow.in_it()
    task.cancel()
    await asyncio.wait({task}, timeout=0.2)
    assert not task.done()
    slow.let_go()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.ended.is_set()


async def test_a_caller_that_is_cancelled_twice_does_not_wait() -> None:
    """The process ends: a disk that hangs must not hold it."""
    slow = BlockingCall()
    task = asyncio.create_task(DiskThreads().run(slow.call))
    await slow.in_it()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert not slow.ended.is_set()
    slow.let_go()


async def test_calls_at_the_same_time_are_limited() -> None:
    disk, slow = DiskThreads(), [BlockingCall() for _ in range(CALLS + 1)]
    tasks = [asyncio.create_task(disk.run(one.call)) for one in slow]
    for one in slow[:CALLS]:
        await one.in_it()
    assert not slow[-1].began.is_set()
    slow[0].let_go()
    await slow[-1].in_it()
    for one in slow:
        one.let_go()
    assert await asyncio.gather(*tasks) == ["done"] * (CALLS + 1)
