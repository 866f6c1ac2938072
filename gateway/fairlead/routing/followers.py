"""Who in this process waits for results of a command: woken by doorbells, never a blocked connection each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Follower:
    """One who waits for news of a command. An asyncio.Event and a timeout would cost five times as much."""

    __slots__ = ("_loop", "_told", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._told = False
        self._waiter: asyncio.Future[bool] | None = None

    def tell(self) -> None:
        self._told = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def clear(self) -> None:
        self._told = False

    async def wait(self, timeout: float) -> bool:
        """True as soon as there are news; False when there were none for `timeout` seconds. One waits at a time."""
        if self._told:
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(timeout, _give_up, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class Followers:
    def __init__(self) -> None:
        self._waiting: dict[str, set[Follower]] = {}
        self.leaving = False
        """This node stops: whoever follows is to ask another one."""
        self._loop: asyncio.AbstractEventLoop | None = None  # looking it up is a system call in Python 3.11

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def join(self, command: str) -> Follower:
        """What is told whenever `command` has news, until it is given to `leave`."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        follower = Follower(self._loop)
        self._waiting.setdefault(command, set()).add(follower)
        return follower

    def leave(self, command: str, follower: Follower) -> None:
        waiting = self._waiting[command]
        waiting.discard(follower)
        if not waiting:
            del self._waiting[command]

    @contextmanager
    def follow(self, command: str, follower: Follower | None = None) -> Iterator[Follower]:
        """Follow until the block is left, with what an earlier `join` gave, if there was one."""
        follower = follower or self.join(command)
        try:
            yield follower
        finally:
            self.leave(command, follower)

    def send_away(self) -> None:
        """Tell all who follow, and whoever comes yet, that this node stops."""
        self.leaving = True
        for waiting in self._waiting.values():
            for follower in waiting:
                follower.tell()

    def wake(self, command: str) -> None:
        for follower in self._waiting.get(command, ()):
            follower.tell()
