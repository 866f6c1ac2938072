"""One command as its handler sees it: output with backpressure, input, time left, and whether it is still wanted.

Made by the agent for each accepted command. `write` waits for the gateway's credit, so a handler that produces
faster than its results can be stored is slowed, never buffered without bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from fairlead.errors import FairleadError
from fairlead.wire.agent_link import OutStream
from fairlead.wire.messages import Message, Numbered

SMALL = 4096
"""A write waits for this much credit (or its size, if less): better than a train of tiny chunks."""


class CommandError(FairleadError):
    """Raise it in a handler to end the command with an error of your own `code`."""

    def __init__(self, code: str, message: str, temporary: bool = False, **details: str | int | float | bool) -> None:
        super().__init__(message, **details)
        self.error_code = code
        self.is_temporary = temporary


class Sender(Protocol):
    """What a command uses of the agent."""

    @property
    def chunk_limit(self) -> int: ...
    def transmit(self, message: Numbered) -> None: ...
    def tell(self, message: Message) -> None: ...


class Command:
    """`deadline` is on the event loop's clock. `cancelled` turns true when nobody wants the results any more."""

    def __init__(
        self, id: str, method: str, payload: bytes, deadline: float, stream: OutStream, sender: Sender
    ) -> None:
        self.id = id
        self.method = method
        self.payload = payload
        self.deadline = deadline
        self.cancelled = False
        self.stdin = Input(self, stream)
        self._stream = stream
        self._sender = sender
        self._room = asyncio.Event()

    @property
    def time_left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    async def write(self, kind: str, data: bytes | str) -> None:
        """Send `data` as one chunk or several. Returns when all of it is on its way or kept to be sent."""
        rest = data.encode() if isinstance(data, str) else data
        stream = self._stream
        while rest:
            while stream.room < min(len(rest), SMALL) and not self.cancelled:
                self._room.clear()
                await self._room.wait()
            if self.cancelled:
                raise CommandError("cancelled", "the command is over: nobody takes its output")
            size = min(len(rest), self._sender.chunk_limit, stream.room)
            self._sender.transmit(stream.chunk(kind, bytes(rest[:size])))
            rest = rest[size:]

    def more_room(self) -> None:
        """The gateway granted credit, or a new link began."""
        self._room.set()

    def abandon(self) -> None:
        """The command is over: whoever still writes or reads is let go."""
        self.cancelled = True
        self._room.set()
        self.stdin.news()

    def tell(self, message: Message) -> None:
        self._sender.tell(message)


class Input:
    """The command's input: iterate it. What is consumed is granted back to the gateway."""

    def __init__(self, command: Command, stream: OutStream) -> None:
        self._command = command
        self._stream = stream
        self._news = asyncio.Event()

    def news(self) -> None:
        """Input came, or its end, or the command's."""
        self._news.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._read()

    async def _read(self) -> AsyncIterator[bytes]:
        stream = self._stream
        while not self._command.cancelled:
            while stream.input:
                data, credit = stream.take()
                if credit is not None:
                    self._command.tell(credit)
                yield data
            if stream.input_ended:
                return
            self._news.clear()
            await self._news.wait()
