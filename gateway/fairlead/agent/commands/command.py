"""What a handler receives: `Command`, which writes output and says how much time is left, and `Stdin`, the command's
input.

Made by `CommandRunner` for each command that is accepted. Writing waits for the gateway's credit. A handler that
produces output faster than it can be stored is therefore slowed down, and nothing is buffered without bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from fairlead.agent.commands.output import ROW, octets
from fairlead.agent.errors import CommandError
from fairlead.wire.command_stream import CommandStream
from fairlead.wire.messages import Chunk, Cmd, Credit

if TYPE_CHECKING:
    from fairlead.agent.verification.signed_input import SignedInput

UNSTORED = 1_024
"""The maximum number of chunks of one stream that wait to be stored. The window counts only payload, so a program that
writes single bytes could otherwise fill it with a quarter of a million messages."""


class OutputSender(Protocol):
    """What a command uses of `Sender`."""

    @property
    def chunk_limit(self) -> int: ...
    @property
    def has_room(self) -> bool: ...
    def post(self, message: Chunk) -> None: ...
    def send_now(self, message: Credit) -> None: ...


class Command:
    """One command, given to handlers whose first parameter is annotated `Command`.

    Attributes:
        id: the command's id, the same on every attempt.
        method: the name of the method.
        payload: the payload as it was received, as JSON.
        lane: "interactive" or "bulk".
        attempt: 1, or more when the command was begun again after a restart of the agent.
        traceparent: the caller's W3C trace context, or empty.
        stdin: the command's input, a `Stdin`.
        cancelled: true once the results are no longer wanted: the command was cancelled, its deadline has passed, or
            the agent is stopping. A coroutine is cancelled then as well; a thread cannot be, and must look at this
            attribute.
    """

    def __init__(
        self, cmd: Cmd, stream: CommandStream, sender: OutputSender, signed_input: SignedInput | None = None
    ) -> None:
        """Made by the agent, not by handlers. `signed_input` opens the chunks of a signed command's input."""
        self.id = cmd.id
        self.method = cmd.method
        self.payload = cmd.payload
        self.lane = cmd.lane
        self.attempt = cmd.attempt
        self.traceparent = cmd.traceparent
        self.cancelled = False
        self.stdin = Stdin(self, stream, sender, signed_input)
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + cmd.deadline / 1000
        self._stream = stream
        self._sender = sender
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._on_bad_input: Callable[[CommandError], None] = lambda _: None

    @property
    def time_left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - self._loop.time())

    async def write(self, kind: str, data: bytes | str) -> None:
        """Send `data` as one or more chunks of this `kind`; "stdout", "stderr" and "row" are the usual ones.

        Returns once all of it has been sent or queued. Raises CancelledError when the command is over, and
        JournalFailed when the agent's journal cannot keep the data.
        """
        async with self._writing:  # the chunks of one write stay together
            rest = memoryview(octets(kind, data, self._sender.chunk_limit))
            while rest:
                # A row is read as a whole; anything else may be cut to fit.
                credit_left = await self._wait_for_credit(len(rest) if kind == ROW else 1)
                size = min(len(rest), self._sender.chunk_limit, credit_left)
                self._sender.post(self._stream.chunk(kind, bytes(rest[:size])))
                rest = rest[size:]

    async def _wait_for_credit(self, least: int) -> int:
        """Wait until there are `least` bytes of credit; return how many there are."""
        stream = self._stream
        while not self.cancelled:
            if stream.credit_left >= least and len(stream.pending) < UNSTORED and self._sender.has_room:
                return stream.credit_left
            self._changed.clear()
            await self._changed.wait()
        raise asyncio.CancelledError(f"command {self.id} is over")

    # `CommandRunner` calls these two.

    def _wake(self) -> None:
        """Wake whoever waits: there may be more credit or more input, or no more of either will come."""
        self._changed.set()
        self.stdin._changed.set()

    def _close(self) -> None:
        """End the command: a handler that still writes or reads gets CancelledError."""
        self.cancelled = True
        self._wake()


class Stdin:
    """The input of a command, as `command.stdin`.

    In a coroutine: `async for data in command.stdin`, or `await command.stdin.read()`. In a thread: `for data in
    command.stdin`. Chunks come as the platform sent them, and iteration ends with the end of the input. The agent
    acknowledges to the gateway what has been read, and the gateway then sends more. A handler that does not read delays
    nobody but its own caller.
    """

    def __init__(
        self, command: Command, stream: CommandStream, sender: OutputSender, signed: SignedInput | None
    ) -> None:
        """Made by the agent, not by handlers."""
        self._command = command
        self._stream = stream
        self._sender = sender
        self._signed = signed
        self._asks = False
        """Whether the input is a content."""
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def content(self) -> AsyncIterator[bytes]:
        """The content that the command names, which is sent only to an agent that asks for it. Nobody has signed it
        chunk by chunk: whoever reads it compares it with a digest from the command's arguments."""
        self._asks = True
        while data := await self.read():
            yield data

    async def read(self) -> bytes:
        """The next chunk; b"" at the end of the input. Raises CancelledError when the command is over."""
        stream = self._stream
        while not self._command.cancelled:
            if stream.input:
                payload, credit = stream.take()
                self._grant(credit)
                if data := self._opened(payload):
                    return data
                continue
            if stream.input_ended:
                self._opened(None)
                return b""
            self._grant(stream.settle())
            if self._asks:
                self._grant(stream.ask())
            self._changed.clear()
            await self._changed.wait()
        raise asyncio.CancelledError(f"command {self._command.id} is over")

    def _opened(self, payload: bytes | None) -> bytes:
        """The data of a chunk, or the end of the input if `payload` is None. Input that is not what the caller has
        signed ends the command."""
        if self._signed is None or self._asks:
            return payload or b""
        try:
            if payload is not None:
                return self._signed.open(payload)
            self._signed.check_end()
        except CommandError as e:
            self._command._on_bad_input(e)
            raise asyncio.CancelledError(f"command {self._command.id} is over") from e
        return b""

    def _grant(self, credit: Credit | None) -> None:
        if credit is not None:
            self._sender.send_now(credit)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    def __iter__(self) -> Iterator[bytes]:
        while data := asyncio.run_coroutine_threadsafe(self.read(), self._loop).result():
            yield data
