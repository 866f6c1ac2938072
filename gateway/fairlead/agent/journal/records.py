"""What stands in an agent's journal: the records, their octets, and the state that they add up to.

Pure: `journal` writes with it and reads with it. A record is 12 octets (length, CRC-32 of the body, CRC-32 of those
eight) and a MessagePack body; output and events are the link protocol's own messages. The head has a check of its
own because a torn tail and a damaged middle must be told apart: the first is the normal end of a process that was
killed and loses nothing that was promised, behind the second there may be commands that were promised.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
from msgspec import Struct

from fairlead.wire.messages import Chunk, Cmd, Count, End, Event, Id
from fairlead.wire.outbox import FINISHED

VERSION = 1


class Record(Struct, tag_field="t", omit_defaults=True, frozen=True, gc=False):
    """Base of what only a journal says. Numbers from 100 on: below are the protocol's."""


class Header(Record, tag=100, frozen=True):
    """The first record. `journal` names this memory to the gateway, and stands in it so that both are lost together."""

    version: Count
    journal: Id
    agent: str


class Accepted(Record, tag=101, frozen=True):
    """A command. `expiry` is its deadline by the wall clock, in Unix ms; `first` the first chunk that follows.

    `spent`: it must not be begun again, because something came out of it or went into it, or it was begun twice.
    """

    cmd: Cmd
    expiry: Count
    first: Count = 0
    spent: bool = False


class CommandClosed(Record, tag=102, frozen=True):
    """The gateway needs nothing more of this command; its id is remembered."""

    id: Id


class EventStored(Record, tag=103, frozen=True):
    """The gateway has this event."""

    id: Id


Entry: TypeAlias = Header | Accepted | CommandClosed | EventStored | Chunk | End | Event

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode
_HEAD = struct.Struct("!II")
_CHECK = struct.Struct("!I")
PREFIX = _HEAD.size + _CHECK.size


def frame(record: Entry) -> bytes:
    """`record` as it stands in the file."""
    body = _encode(record)
    head = _HEAD.pack(len(body), zlib.crc32(body))
    return head + _CHECK.pack(zlib.crc32(head)) + body


@dataclass(slots=True)
class JournaledCommand:
    """One command that is not over. `chunks` with the octets that each takes in the file."""

    cmd: Cmd
    expiry: int
    spent: bool
    size: int
    next: int
    chunks: deque[tuple[Chunk, int]] = field(default_factory=deque)
    end: End | None = None

    def may_begin_again(self, now: int) -> bool:
        """Whether a new process may run it, `now` in Unix ms: only if that is safe and nobody has seen it run."""
        return self.cmd.retry == "safe" and not self.spent and self.next == 0 and not self.end and now < self.expiry


@dataclass(slots=True)
class JournalState:
    """What the records say so far. `live` counts the octets of those that still matter."""

    head: Header | None = None
    commands: dict[str, JournaledCommand] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    """The last ids, oldest first: they must not run again."""
    events: dict[str, tuple[Event, int]] = field(default_factory=dict)
    live: int = 0

    def apply(self, record: Entry, size: int) -> None:
        """Take in the next record, of `size` octets. Raises ValueError when it cannot follow the others."""
        match record:
            case Chunk():
                self._chunk(record, size)
            case End():
                self._end(record, size)
            case Event():
                self.told(record.id)
                self.events[record.id] = (record, size)
                self.live += size
            case Accepted():
                self._forget(record.cmd.id)
                self.commands[record.cmd.id] = JournaledCommand(
                    record.cmd, record.expiry, record.spent, size, record.first
                )
                self.live += size
            case CommandClosed():
                self._over(record.id, size)
            case EventStored():
                self.told(record.id)
            case Header():
                if self.head is not None:
                    raise ValueError("a second head")
                self.head = record
                self.live += size

    def stored(self, command: str, count: int) -> None:
        """The gateway has the first `count` chunks. No record says so: at the next start it says so itself."""
        journaled = self.commands.get(command)
        while journaled is not None and journaled.chunks and journaled.chunks[0][0].n < count:
            self.live -= journaled.chunks.popleft()[1]

    def told(self, event: str) -> None:
        """The gateway has this event."""
        self.live -= self.events.pop(event, (None, 0))[1]

    def records(self) -> Iterator[Entry]:
        """The fewest records that say the same."""
        if self.head is not None:
            yield self.head
        for command in self.finished:
            yield CommandClosed(command)
        for journaled in self.commands.values():
            first = journaled.chunks[0][0].n if journaled.chunks else journaled.next
            spent = journaled.spent or journaled.next > 0
            cmd = msgspec.structs.replace(journaled.cmd, payload=b"") if spent else journaled.cmd
            yield Accepted(cmd, journaled.expiry, first, spent)
            for chunk, _ in journaled.chunks:
                yield chunk
            if journaled.end is not None:
                yield journaled.end
        for event, _ in self.events.values():
            yield event

    def _chunk(self, chunk: Chunk, size: int) -> None:
        journaled = self.commands.get(chunk.id)
        if journaled is None:
            return  # a handler that outlived its command
        if chunk.n != journaled.next or journaled.end is not None:
            raise ValueError(f"chunk {chunk.n} of {chunk.id} is not the next, {journaled.next}")
        journaled.next += 1
        journaled.chunks.append((chunk, size))
        self.live += size

    def _end(self, end: End, size: int) -> None:
        journaled = self.commands.get(end.id)
        if journaled is None:
            return
        first = journaled.chunks[0][0].n if journaled.chunks else journaled.next
        if first <= end.total < journaled.next:  # cut at a cancel: what is behind the end was never sent
            while journaled.next > end.total:
                self.live -= journaled.chunks.pop()[1]
                journaled.next -= 1
        elif end.total != journaled.next:  # the gateway has lost results, and nothing before it counts any more
            self.live -= sum(held for _, held in journaled.chunks)
            journaled.chunks.clear()
            journaled.next = end.total
        journaled.end = end
        journaled.size += size
        self.live += size

    def _forget(self, command: str) -> None:
        journaled = self.commands.pop(command, None)
        if journaled is not None:
            self.live -= journaled.size + sum(held for _, held in journaled.chunks)

    def _over(self, command: str, size: int) -> None:
        self._forget(command)
        self.live += size - self.finished.pop(command, 0)
        self.finished[command] = size
        if len(self.finished) > FINISHED:
            self.live -= self.finished.pop(next(iter(self.finished)))


@dataclass(frozen=True, slots=True)
class Replay:
    """What a file says: up to `end` it is whole. `torn`: the last record is not. `damage`: why the rest is not used."""

    state: JournalState
    end: int
    torn: bool = False
    damage: str = ""


def replay(data: bytes) -> Replay:
    """Read a whole file. Never raises: what cannot be read is where the result ends."""
    view, state, at = memoryview(data), JournalState(), 0
    while at < len(data):
        if len(data) - at < PREFIX:
            return Replay(state, at, torn=True)
        length, check = _HEAD.unpack_from(data, at)
        body = view[at + PREFIX : at + PREFIX + length]
        after = at + PREFIX + length
        if zlib.crc32(view[at : at + _HEAD.size]) != _CHECK.unpack_from(data, at + _HEAD.size)[0]:
            # A file system may have made the file longer before it wrote into it.
            torn = not any(view[at + PREFIX :])
            return Replay(state, at, torn=torn, damage="" if torn else f"no record begins at octet {at}")
        if after > len(data):
            return Replay(state, at, torn=True)
        if zlib.crc32(body) != check:
            torn = not any(view[after:])
            return Replay(state, at, torn=torn, damage="" if torn else f"the record at octet {at} is damaged")
        try:
            record = _decode(body)
            if (state.head is None) is not isinstance(record, Header):
                raise ValueError("the head is not the first record")
            state.apply(record, after - at)
        except (msgspec.MsgspecError, ValueError) as e:
            return Replay(state, at, damage=f"the record at octet {at} makes no sense: {e}")
        at = after
    return Replay(state, at)
