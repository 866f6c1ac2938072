"""Listeners of a server whose connections share a read scheduler. Made by the fixture `listen`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fairlead.carrier.listener import Connection
from fairlead.carrier.reading.scheduler import ReadScheduler

from support.carrier.listeners import RecordingListener


class MeteredListener(RecordingListener):
    """Messages that begin with `!` count as asked for, and those that begin with `e` as events."""

    def __init__(self, *, echo: bool = False) -> None:
        super().__init__(echo=echo)
        self.asked = 0
        self.excesses: list[str] = []

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        super().on_message(connection, message)
        if message[:1] == "!":
            self.asked += 1
        elif message[:1] == "e":
            self.asked += 1
            connection.charge(events=1)

    def on_excess(self, connection: Connection, reason: str) -> None:
        self.excesses.append(reason)
        connection.close(4413, reason)


class ScheduledListeners:
    """A server whose connections share a read scheduler, and the listeners that it has made."""

    def __init__(self, port: int, read_scheduler: ReadScheduler) -> None:
        self.port = port
        self.read_scheduler = read_scheduler
        self.all: list[Any] = []
        self.make: Callable[[], Any] = lambda: MeteredListener(echo=False)

    def __call__(self) -> Any:
        self.all.append(self.make())
        return self.all[-1]

    def check_sums(self) -> None:
        """The read scheduler counts what its connections keep."""
        accounts = self.read_scheduler._accounts.values()
        assert self.read_scheduler.kept == sum(account.kept for account in accounts)
        assert all(account.kept == account.connection.kept for account in accounts)


Listen = Callable[..., Awaitable[ScheduledListeners]]
