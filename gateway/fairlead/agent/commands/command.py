"""One command as its handler sees it: output with backpressure, input, time left, and whether it is still wanted.

Made by `CommandRunner` for each accepted command. `write` waits for the gateway's credit, so a handler that produces
faster than its results can be stored is slowed, never buffered without bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from fairlead.agent.commands.output import ROW, octets
from fairlead.wire.command_stream import CommandStream
from fairlead.wire.messages import Chunk, Cmd, Credit

UNSTORED = 1_024
"""Chunks of one stream that may wait to be stored: the window counts payload alone, and a program that writes
single bytes would fill a quarter of a million messages into it."""


class OutputSender(Protocol):
    """What a command uses of the way to the gateway."""

    @property
    def chunk_limit(self) -> int: ...
    @property
    def has_room(self) -> bool: ...
    def post(self, message: Chunk) -> None: ...
    def tell(self, message: Credit) -> None: ...


class Command:
    """Given to handlers whose first parameter is annotated `Command`.

    `cancelled` turns true when nobody wants the results any more: cancelled, out of time, or the agent stops.
    A coroutine is cancelled then as well; a thread cannot be and has to look.
    """

    def __init__(self, cmd: Cmd, stream: CommandStream, sender: OutputSender) -> None:
        self.id = cmd.id
        self.method = cmd.method
        self.payload = cmd.payload
        self.lane = cmd.lane
        self.attempt = cmd.attempt
        self.traceparent = cmd.traceparent
        self.cancelled = False
        self.stdin = Stdin(self, stream, sender)
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + cmd.deadline / 1000
        self._stream = stream
        self._sender = sender
        self._writing = asyncio.Lock()
        self._moved = asyncio.Event()

    @property
    def time_left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - self._loop.time())

    async def write(self, kind: str, data: bytes | str) -> None:
        """Send `data` as one chunk or several; returns when all of it is on its way or kept to be sent.

        Raises CancelledError when the command is over, JournalFailed when the agent's journal cannot keep the data.
        """
        async with self._writing:  # the chunks of one write stay together
            rest = memoryview(octets(kind, data, self._sender.chunk_limit))
            while rest:
                # A row is read whole; all else may be cut to fit.
                room = await self._room(len(rest) if kind == ROW else 1)
                size = min(len(rest), self._sender.chunk_limit, room)
                self._sender.post(self._stream.chunk(kind, bytes(rest[:size])))
                rest = rest[size:]

    async def _room(self, least: int) -> int:
        """The credit there is, once it is `least` or more."""
        stream = self._stream
        while not self.cancelled:
            if stream.room >= least and len(stream.pending) < UNSTORED and self._sender.has_room:
                return stream.room
            self._moved.clear()
            await self._moved.wait()
        raise asyncio.CancelledError(f"command {self.id} is over")

    def moved(self) -> None:
        """There may be more room, or more input, or neither any more."""
        self._moved.set()
        self.stdin.moved()

    def over(self) -> None:
        """Whoever still writes or reads is let go."""
        self.cancelled = True
        self.moved()


class Stdin:
    """The command's input: `async for data in command.stdin`; in a thread, a plain `for`."""

    def __init__(self, command: Command, stream: CommandStream, sender: OutputSender) -> None:
        self._command = command
        self._stream = stream
        self._sender = sender
        self._moved = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def moved(self) -> None:
        self._moved.set()

    async def read(self) -> bytes:
        """The next chunk; empty at the end. Raises CancelledError when the command is over."""
        stream = self._stream
        while not self._command.cancelled:
            if stream.input:
                payload, credit = stream.take()
                self._grant(credit)
                if payload:
                    return payload
                continue
            if stream.input_ended:
                return b""
            self._grant(stream.settle())
            self._moved.clear()
            await self._moved.wait()
        raise asyncio.CancelledError(f"command {self._command.id} is over")

    def _grant(self, credit: Credit | None) -> None:
        if credit is not None:
            self._sender.tell(credit)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    def __iter__(self) -> Iterator[bytes]:
        while data := asyncio.run_coroutine_threadsafe(self.read(), self._loop).result():
            yield data
