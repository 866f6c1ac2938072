"""The state that results from a journal's records: open commands with their output, ids of finished commands, and
events.

`writer` applies each record that it appends; `replay` applies those of a file. Pure: no I/O and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from fairlead.agent.journal.records import Accepted, CommandClosed, Entry, EventStored, Header, RememberedId
from fairlead.wire.messages import Chunk, Cmd, End, Event
from fairlead.wire.outbox import FINISHED

SIGNED_SIZE = 80
"""The size in bytes of one RememberedId in the file."""


@dataclass(slots=True)
class JournaledCommand:
    """One command that is not closed. Each of `chunks` comes with its size in the file, in bytes."""

    cmd: Cmd
    expiry: int
    spent: bool
    size: int
    next: int
    chunks: deque[tuple[Chunk, int]] = field(default_factory=deque)
    end: End | None = None

    def may_restart(self, now: int) -> bool:
        """Whether a new process may run it, at `now` in Unix ms: only if that is safe and nobody has seen it run."""
        return self.cmd.retry == "safe" and not self.spent and self.next == 0 and not self.end and now < self.expiry


@dataclass(slots=True)
class JournalState:
    """The state after some records. `live` is the size of those that still matter, in bytes."""

    header: Header | None = None
    commands: dict[str, JournaledCommand] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    """The ids of the last closed commands, oldest first, with the size of their record: these commands must not run
    again."""
    events: dict[str, tuple[Event, int]] = field(default_factory=dict)
    signed: dict[str, int] = field(default_factory=dict)
    """The ids of the signed commands that were accepted, with the time until which each is remembered (Unix ms)."""
    live: int = 0

    def apply(self, record: Entry, size: int) -> None:
        """Apply the next record, of `size` bytes. Raises ValueError when it cannot follow the others."""
        match record:
            case Chunk():
                self._chunk(record, size)
            case End():
                self._end(record, size)
            case Event():
                self.event_stored(record.id)
                self.events[record.id] = (record, size)
                self.live += size
            case Accepted():
                self._forget(record.cmd.id)
                self.commands[record.cmd.id] = JournaledCommand(
                    record.cmd, record.expiry, record.spent, size, record.first
                )
                self.live += size
                if record.signed:
                    self._remember(record.cmd.id, record.signed)
            case RememberedId():
                self._remember(record.id, record.until)
            case CommandClosed():
                self._close(record.id, size)
            case EventStored():
                self.event_stored(record.id)
            case Header():
                if self.header is not None:
                    raise ValueError("a second header")
                self.header = record
                self.live += size

    def stored(self, command: str, count: int) -> None:
        """The gateway has stored the first `count` chunks. No record is written: after the next start the gateway says
        it again.
        """
        journaled = self.commands.get(command)
        while journaled is not None and journaled.chunks and journaled.chunks[0][0].n < count:
            self.live -= journaled.chunks.popleft()[1]

    def event_stored(self, event: str) -> None:
        """The gateway has stored this event."""
        self.live -= self.events.pop(event, (None, 0))[1]

    def forget_expired(self, now: int) -> None:
        """Forget the signed commands whose signatures have expired at `now` (Unix ms)."""
        kept = {command: until for command, until in self.signed.items() if until >= now}
        self.live -= SIGNED_SIZE * (len(self.signed) - len(kept))
        self.signed = kept

    def records(self) -> Iterator[Entry]:
        """The fewest records that add up to this state."""
        if self.header is not None:
            yield self.header
        for command, until in self.signed.items():
            yield RememberedId(command, until)
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
            return  # from a handler that outlived its command
        if chunk.n != journaled.next or journaled.end is not None:
            raise ValueError(f"chunk {chunk.n} of {chunk.id} is out of order: expected {journaled.next}")
        journaled.next += 1
        journaled.chunks.append((chunk, size))
        self.live += size

    def _end(self, end: End, size: int) -> None:
        journaled = self.commands.get(end.id)
        if journaled is None:
            return
        first = journaled.chunks[0][0].n if journaled.chunks else journaled.next
        if first <= end.total < journaled.next:  # cut by a cancel: chunks beyond the total were never sent
            while journaled.next > end.total:
                self.live -= journaled.chunks.pop()[1]
                journaled.next -= 1
        elif end.total != journaled.next:  # the gateway has lost results, so earlier chunks no longer count
            self.live -= sum(held for _, held in journaled.chunks)
            journaled.chunks.clear()
            journaled.next = end.total
        journaled.end = end
        journaled.size += size
        self.live += size

    def _remember(self, command: str, until: int) -> None:
        if command not in self.signed:
            self.live += SIGNED_SIZE
        self.signed[command] = until

    def _forget(self, command: str) -> None:
        journaled = self.commands.pop(command, None)
        if journaled is not None:
            self.live -= journaled.size + sum(held for _, held in journaled.chunks)

    def _close(self, command: str, size: int) -> None:
        self._forget(command)
        self.live += size - self.finished.pop(command, 0)
        self.finished[command] = size
        if len(self.finished) > FINISHED:
            self.live -= self.finished.pop(next(iter(self.finished)))
