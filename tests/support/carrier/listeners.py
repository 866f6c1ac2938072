"""A listener that records what it is told, and a factory that keeps all the listeners of a server."""

from __future__ import annotations

from typing import Protocol

from fairlead.carrier.listener import Connection


class RecordingListener:
    """Records every call, and echoes if asked to."""

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.connection: Connection | None = None
        self.opened = 0
        self.messages: list[bytes | str] = []
        self.closed: list[tuple[int, str]] = []
        self.silences: list[int] = []
        self.writable = 0
        self.overflows = 0

    @property
    def open_connection(self) -> Connection:
        """The connection, which must be open."""
        assert self.connection is not None, "the connection is closed or not open yet"
        return self.connection

    def on_open(self, connection: Connection) -> None:
        self.opened += 1
        self.connection = connection

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        self.messages.append(message)
        if self.echo:
            connection.send(message)

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.closed.append((code, reason))
        self.connection = None

    def on_silence(self, connection: Connection) -> None:
        self.silences.append(connection.silent_periods)

    def on_writable(self, connection: Connection) -> None:
        self.writable += 1

    def on_overflow(self, connection: Connection) -> None:
        self.overflows += 1


class MakeListener(Protocol):
    def __call__(self, *, echo: bool) -> RecordingListener: ...


class ListenerFactory:
    """Makes the listeners of a server; `last` is the newest. `limit` is what its write buffers may hold, in bytes."""

    def __init__(self, make: MakeListener) -> None:
        self.make = make
        self.echo = False
        self.limit = 256 << 10
        self.port = 0
        self.all: list[RecordingListener] = []

    def __call__(self) -> RecordingListener:
        self.all.append(self.make(echo=self.echo))
        return self.all[-1]

    @property
    def last(self) -> RecordingListener:
        return self.all[-1]
