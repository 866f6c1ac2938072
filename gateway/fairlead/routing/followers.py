"""The followers on this node, which wait for news about a topic: results of a command, or another node's answer.

Doorbells wake followers. A follower is an object and a future, never a blocked connection of its own.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol

from fairlead.bus.doorbell import TargetEnded

TOLD_LIMIT = 64
"""Doorbells with results that one follower keeps for its reader: 256 KiB, a page. A slower reader reads the store."""


class Notified(Protocol):
    """Whoever is told of news, and does not wait in a task of its own."""

    def notify(self) -> None: ...
    def tell_end(self, end: TargetEnded) -> None:
        """The command has ended like this."""


class Follower:
    """One waiter. An asyncio.Event with a timeout would cost five times as much."""

    __slots__ = ("_loop", "_must_read", "_notified", "_told", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._notified = False
        self._must_read = False
        self._told: list[bytes] = []
        self._waiter: asyncio.Future[bool] | None = None

    def notify(self) -> None:
        self._must_read = True
        self._wake()

    def tell_results(self, added: bytes) -> None:
        """These results were stored."""
        if len(self._told) < TOLD_LIMIT:
            self._told.append(added)
        else:
            self._must_read = True
        self._wake()

    def _wake(self) -> None:
        self._notified = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def tell_end(self, end: TargetEnded) -> None:
        """It reads how the command ended."""
        self.notify()

    def clear(self) -> None:
        self.take()

    def take(self) -> list[bytes]:
        """All results that were told, or nothing if there is other news, for which the store has to be read. Both are
        forgotten with this call."""
        told = [] if self._must_read else self._told
        self._notified = self._must_read = False
        self._told = []
        return told

    async def wait(self, timeout: float) -> bool:
        """Return True as soon as there is news, False if there is none for `timeout` seconds. One task may wait at a
        time."""
        if self._notified:
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(timeout, _time_out, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None


def _time_out(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class Following:
    """A follower within a `with` block. `contextmanager` costs each reader 2 µs more."""

    __slots__ = ("_follower", "_followers", "_topic")

    def __init__(self, followers: Followers, topic: str, follower: Follower) -> None:
        self._followers = followers
        self._topic = topic
        self._follower = follower

    def __enter__(self) -> Follower:
        return self._follower

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._followers.leave(self._topic, self._follower)


class Followers:
    """Followers by topic. The topic of a command's results is the command's id."""

    def __init__(self) -> None:
        self._waiting: dict[str, Notified | tuple[Notified, ...]] = {}
        """A topic has one follower as a rule, and a run thousands of topics: a tuple is made of two or more alone."""
        self.released = False
        """True once this node stops: callers must follow at another node."""
        self._loop: asyncio.AbstractEventLoop | None = None  # looking it up is a system call in Python 3.11

    def __len__(self) -> int:
        return sum(len(self._of(topic)) for topic in self._waiting)

    def _of(self, topic: str) -> tuple[Notified, ...]:
        found = self._waiting.get(topic, ())
        return found if isinstance(found, tuple) else (found,)

    def join(self, topic: str) -> Follower:
        """Add a follower of `topic`. It is notified until it is passed to `leave`."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        follower = Follower(self._loop)
        self.add(topic, follower)
        return follower

    def add(self, topic: str, follower: Notified) -> None:
        """Notify `follower` of `topic` until it is passed to `leave`."""
        self._waiting[topic] = (*self._of(topic), follower) if topic in self._waiting else follower

    def leave(self, topic: str, follower: Notified) -> None:
        if waiting := [one for one in self._of(topic) if one is not follower]:
            self._waiting[topic] = waiting[0] if len(waiting) == 1 else tuple(waiting)
        else:
            del self._waiting[topic]

    def follow(self, topic: str, follower: Follower | None = None) -> Following:
        """Follow `topic` within a `with` block, with `follower` if it has joined already."""
        return Following(self, topic, follower or self.join(topic))

    def release(self) -> None:
        """Tell all followers, and those that come later, that this node stops."""
        self.released = True
        for topic in self._waiting:
            for follower in self._of(topic):
                follower.notify()

    def tell_end(self, end: TargetEnded) -> None:
        """Tell those who follow the command how it ended."""
        for follower in self._of(end.command):
            follower.tell_end(end)

    def tell_results(self, command: str, added: bytes) -> None:
        """Tell those who follow the command that these results were stored (see `result_doorbells`)."""
        for follower in self._of(command):
            if isinstance(follower, Follower):
                follower.tell_results(added)
            else:
                follower.notify()

    def notify(self, topic: str) -> None:
        for follower in self._of(topic):
            follower.notify()
