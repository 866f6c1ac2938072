"""A listener that writes down what it is told, and echoes if asked to."""

from __future__ import annotations

from fairlead.carrier.listener import Connection


class Heard:
    """A listener that writes down what it is told, and echoes if asked to."""

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.connection: Connection | None = None
        self.opened = 0
        self.messages: list[bytes | str] = []
        self.closed: list[tuple[int, str]] = []
        self.silences: list[int] = []
        self.writable = 0
        self.overflows = 0

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
