"""Everything of one agent's process that the gateway has not stored yet: streams by command, and events.

It lives as long as the process; links come and go over it: each link's `AgentLink` says what was stored, the SDK's
session what happens. It has no socket and no clock. It may have a `Memory`, which is told of each change and from which
the outbox of the next process is made.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.wire.command_stream import CommandStream, Memory
from fairlead.wire.messages import WINDOW, Ack, Chunk, Cmd, End, Event, Lane, Numbered

FINISHED = 1_024
"""Ids of finished commands that are remembered: a gateway repeats a command only within one resume, which
names no more than so many."""


class Outbox:
    """Everything of this process that the gateway has not stored yet: streams by command id, and events."""

    __slots__ = ("_finished", "_memory", "events", "streams")

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        self.streams: dict[str, CommandStream] = {}
        self.events: dict[str, Event] = {}
        self._finished: dict[str, None] = {}

    def opened(self, cmd: Cmd, window: int = WINDOW) -> CommandStream:
        """The stream of a command that was just accepted."""
        stream = self.streams[cmd.id] = CommandStream(cmd.id, cmd.credit, window, self._memory, cmd.lane)
        return stream

    def lane(self, message: Numbered) -> Lane:
        """The lane of a message: its command's, or interactive."""
        stream = self.streams.get(message.id)
        return stream.lane if stream is not None else "interactive"

    def restored(self, command: str, following: int, pending: Iterable[Chunk | End]) -> CommandStream:
        """The stream of a command of a former process; `following` is the chunk that would be next. The next
        welcome says from where on it is sent, and gives it room.
        """
        stream = self.streams[command] = CommandStream(command, 0, memory=self._memory)
        stream.next = following
        stream.pending.extend(pending)
        stream.ended = bool(stream.pending) and isinstance(stream.pending[-1], End)
        return stream

    def dropped(self, command: str) -> None:
        """The gateway does not go on with it."""
        del self.streams[command]
        self.finished(command)
        if self._memory is not None:
            self._memory.over(command)

    def occurred(self, event: Event) -> None:
        """An event of qos 1, to be sent until it is stored."""
        if self._memory is not None:
            self._memory.keep(event)
        self.events[event.id] = event

    def finished(self, command: str) -> None:
        """The command is over and must not run again if it comes once more."""
        self._finished[command] = None
        if len(self._finished) > FINISHED:
            del self._finished[next(iter(self._finished))]

    def known(self, command: str) -> bool:
        """Whether the command runs or is among the last that ran."""
        return command in self.streams or command in self._finished

    def have(self) -> dict[str, int]:
        """For hello: the next input chunk of each stream that still runs. Input not yet taken is forgotten."""
        for stream in self.streams.values():
            stream.rewind()
        return {s.command: s.input_next for s in self.streams.values() if not s.ended}

    def stored(self, message: Numbered) -> None:
        """The gateway has stored `message`: forget it."""
        if isinstance(message, Event):
            if self.events.pop(message.id, None) is not None and self._memory is not None:
                self._memory.told(message.id)
        elif not isinstance(message, Ack):
            stream = self.streams.get(message.id)
            if stream is not None and stream.pending and stream.pending[0] is message:
                stream.pending.popleft()
                over = stream.ended and not stream.pending
                if over:
                    del self.streams[message.id]
                if self._memory is not None:
                    if over:
                        self._memory.over(message.id)
                    elif isinstance(message, Chunk):
                        self._memory.stored(message.id, message.n + 1)
