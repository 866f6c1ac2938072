"""The commands and events of one simulated agent, exactly as the protocol requires.

Created by its agent with the first command or event, so that it costs an idle agent nothing. The outbox and the link's
state machine are those of the SDK: what was not stored is sent again on the next link, ids are remembered, and output
stays within its credit. Only the methods are simulated: `echo` returns its payload, any other method outputs as many
bytes as requested and ends with exit code 0. `script` asks for the content that its arguments name, reads it, compares
it with the digest, and keeps nothing; no other method reads input.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterator
from typing import Protocol

import msgspec

from fairlead.carrier.listener import Connection
from fairlead.swarm.counters import Counters
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.codec import Codec
from fairlead.wire.command_stream import CommandStream
from fairlead.wire.messages import (
    Ack,
    Cancel,
    Chunk,
    Cmd,
    Credit,
    End,
    EndState,
    Error,
    Event,
    FromGateway,
    Numbered,
    Rx,
    Welcome,
)
from fairlead.wire.outbox import Outbox

CHUNK_BYTES = 16 << 10
"""Bytes of one chunk: as much as a program's pipe returns at a time, and little compared with any window."""
MOST_OUTPUT = 1 << 30
MOST_EVENTS = 100
"""Events of one agent that may wait to be stored; beyond that, none are emitted."""
TEXT = (b"the quick brown fox jumps over the lazy dog 0123456789 .,;:\n" * (CHUNK_BYTES // 60 + 1))[:CHUNK_BYTES]
EXITED = b'{"exit_code":0}'


class CommandOwner(Protocol):
    """What the commands use of their agent."""

    @property
    def connection(self) -> Connection | None: ...
    @property
    def codec(self) -> Codec[FromGateway]: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def output(self) -> int:
        """Bytes that a command outputs unless its payload says how many."""


class SimulatedCommand:
    """One command, the content that it awaits before anything else, and its remaining output."""

    __slots__ = ("digest", "hash", "piece", "rest", "stream", "timer")

    def __init__(self, stream: CommandStream, pieces: Iterator[bytes], digest: str) -> None:
        self.stream = stream
        self.rest = pieces
        self.piece = next(pieces, None)
        self.timer: asyncio.TimerHandle | None = None
        self.digest = digest
        """The SHA-256 of the content that is still awaited, in hexadecimal; empty if no content is awaited."""
        self.hash = hashlib.sha256() if digest else None

    def read(self) -> Error | None:
        """Take the part of the content that has arrived. Returns an error if the content is complete and its digest is
        not the one that the arguments name."""
        while self.stream.input:
            data, credit = self.stream.take()
            if credit is not None:  # `settle` grants all at once
                self.stream.unsettled(credit.bytes)
            if self.hash is not None:
                self.hash.update(data)
        if self.hash is None or not self.stream.input_ended:
            return None
        came, wanted = self.hash.hexdigest(), self.digest
        self.digest, self.hash = "", None
        return None if came == wanted else Error("content_mismatch", f"the content has digest {came}, not {wanted}")


class SimulatedCommands:
    __slots__ = ("_owner", "_queue", "_running", "link", "outbox")

    def __init__(self, owner: CommandOwner, *, window: int, ready: bool) -> None:
        self._owner = owner
        self._queue: deque[Numbered] = deque()
        """Messages not written to this link yet: never more than the outbox has, plus acks."""
        self._running: dict[str, SimulatedCommand] = {}
        self.outbox = Outbox()
        self.link = AgentLink(self.outbox)
        # The link exists already, but no numbered message was sent on it yet.
        self.link.ready, self.link.window = ready, window

    def relink(self) -> None:
        """Start again on another connection, or on none. On the new link input starts at chunk 0, and a content has to
        be asked for again.
        """
        self._queue.clear()
        self.link = AgentLink(self.outbox)

    def receive(self, message: FromGateway | None) -> None:
        """Any message. Raises ProtocolViolation."""
        streams, events = len(self.outbox.streams), len(self.outbox.events)
        self.link.receive(message)
        if isinstance(message, Rx):
            self._owner.counters.answered += streams - len(self.outbox.streams)
            self._owner.counters.events_stored += events - len(self.outbox.events)
        elif isinstance(message, Welcome):
            self._resume(message)
        elif isinstance(message, Cmd):
            self._accept(message)
        elif isinstance(message, Cancel) and message.id in self._running:
            self._end(message.id, "cancelled")
        elif isinstance(message, Chunk | End) and (running := self._running.get(message.id)) and running.digest:
            self._read(running)
        self._queue.extend(self.link.released)
        self.link.released.clear()
        self.pump()

    def emit(self, event: Event) -> None:
        if len(self.outbox.events) >= MOST_EVENTS:
            self._owner.counters.events_skipped += 1
            return
        self._owner.counters.events += 1
        self.outbox.occurred(event)
        if self.link.ready:  # before welcome it waits in the outbox
            self._queue.append(event)
            self.pump()

    def pump(self) -> None:
        """Write what waits, and produce more, while the socket takes it."""
        connection = self._owner.connection
        while connection is not None and not connection.closing and not connection.congested:
            if not self._queue and not self._produce():
                return
            message = self._queue.popleft()
            self.link.written(message)
            connection.send(self._owner.codec.encode(message))

    def _resume(self, welcome: Welcome) -> None:
        over, again = self.link.resend(welcome)
        for command in over:
            self.outbox.finished(command)
            self._forget(command)
        self._queue.extend(again)
        for running in self._running.values():
            if running.digest:
                self._grant(running.stream.ask())

    def _read(self, running: SimulatedCommand) -> None:
        error = running.read()
        if error is not None:
            self._end(running.stream.command, "error", error)
        elif running.digest:
            self._grant(running.stream.settle())

    def _grant(self, credit: Credit | None) -> None:
        if credit is not None and self._owner.connection is not None:
            self._owner.connection.send(self._owner.codec.encode(credit))

    def _accept(self, cmd: Cmd) -> None:
        if self.outbox.known(cmd.id):
            self._owner.counters.duplicates += 1
            self._queue.append(Ack(id=cmd.id, state="duplicate"))
            return
        self._owner.counters.commands += 1
        self._queue.append(Ack(id=cmd.id))
        stream = self.outbox.opened(cmd, self.link.window)
        arguments = _read_payload(cmd)
        digest = arguments.digest if cmd.method == "script" else ""
        pieces = _output(cmd, arguments.bytes or self._owner.output)
        running = self._running[cmd.id] = SimulatedCommand(stream, pieces, digest)
        if digest:
            self._grant(stream.ask())
        if cmd.deadline == 0:
            self._end(cmd.id, "timeout")
            return
        self.pump()
        if cmd.id in self._running:  # it waits for credit or for the socket
            loop = asyncio.get_running_loop()
            running.timer = loop.call_later(cmd.deadline / 1000, self._end, cmd.id, "timeout")

    def _produce(self) -> bool:
        """Queue one more chunk or end; False when all wait for credit or a content, or nothing runs."""
        if not self.link.ready:
            return False
        for command, running in self._running.items():
            if running.digest:
                continue
            if running.piece is None:
                self._end(command, "ok")
                return True
            if len(running.piece) <= running.stream.credit_left:
                self._queue.append(running.stream.chunk("stdout", running.piece))
                self._owner.counters.output_bytes += len(running.piece)
                running.piece = next(running.rest, None)
                return True
        return False

    def _end(self, command: str, state: EndState, error: Error | None = None) -> None:
        stream = self._running[command].stream
        self._forget(command)
        self.outbox.finished(command)
        held = bool(stream.held)
        end: End = stream.end(state, EXITED if state == "ok" else b"", error)
        if self.link.ready and not held:
            self._queue.append(end)
        if state != "ok":
            self.pump()

    def _forget(self, command: str) -> None:
        running = self._running.pop(command, None)
        if running is not None and running.timer is not None:
            running.timer.cancel()


def _output(cmd: Cmd, size: int) -> Iterator[bytes]:
    if cmd.method == "echo":
        for start in range(0, len(cmd.payload), CHUNK_BYTES):
            yield cmd.payload[start : start + CHUNK_BYTES]
        return
    size = min(MOST_OUTPUT, size)
    for start in range(0, size, CHUNK_BYTES):
        yield TEXT[: min(CHUNK_BYTES, size - start)]


class _Payload(msgspec.Struct):
    """The members of a payload that simulated methods understand."""

    bytes: int = 0
    digest: str = ""


def _read_payload(cmd: Cmd) -> _Payload:
    try:
        return msgspec.json.decode(cmd.payload, type=_Payload)
    except msgspec.MsgspecError:
        return _Payload()  # arguments of another method
