"""The outbox of an agent's process: the streams and events that the gateway has not stored yet.

It exists as long as the process and outlives links. The `AgentLink` of each link reports what was stored, and the SDK's
session reports new commands and events. The outbox has no socket and no clock. It may have a `Memory`, which is
notified of each change and from which the outbox of the next process is restored.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.wire.command_stream import CommandStream, Memory
from fairlead.wire.messages import WINDOW, Ack, Chunk, Cmd, End, Event, Lane, Numbered

FINISHED = 1_024
"""How many ids of finished commands are kept: a gateway repeats a command only within one resume, which holds at most
this many commands."""


class Outbox:
    """The streams, by command id, and the events of this process that the gateway has not stored yet."""

    __slots__ = ("_finished", "_memory", "events", "streams")

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        self.streams: dict[str, CommandStream] = {}
        self.events: dict[str, Event] = {}
        self._finished: dict[str, None] = {}

    def opened(self, cmd: Cmd, window: int = WINDOW) -> CommandStream:
        """Create the stream of a command that was just accepted."""
        stream = self.streams[cmd.id] = CommandStream(cmd.id, cmd.credit, window, self._memory, cmd.lane)
        return stream

    def lane(self, message: Numbered) -> Lane:
        """The lane of a message: the lane of its command, otherwise interactive."""
        stream = self.streams.get(message.id)
        return stream.lane if stream is not None else "interactive"

    def restored(self, command: str, following: int, pending: Iterable[Chunk | End]) -> CommandStream:
        """Restore the stream of a command of a previous process; `following` is the number of its next chunk. The next
        welcome says from which chunk on it is sent, and gives it credit.
        """
        stream = self.streams[command] = CommandStream(command, 0, memory=self._memory)
        stream.next = following
        stream.pending.extend(pending)
        stream.ended = bool(stream.pending) and isinstance(stream.pending[-1], End)
        return stream

    def dropped(self, command: str) -> None:
        """Remove a command that the gateway does not continue."""
        del self.streams[command]
        self.finished(command)
        if self._memory is not None:
            self._memory.over(command)

    def occurred(self, event: Event) -> None:
        """Add an event with qos 1, which is sent until it is stored."""
        if self._memory is not None:
            self._memory.keep(event)
        self.events[event.id] = event

    def finished(self, command: str) -> None:
        """Record that the command has ended and must not run if the gateway sends it again."""
        self._finished[command] = None
        if len(self._finished) > FINISHED:
            del self._finished[next(iter(self._finished))]

    def known(self, command: str) -> bool:
        """Whether the command is running or is one of the last FINISHED commands."""
        return command in self.streams or command in self._finished

    def have(self) -> dict[str, int]:
        """For hello: of each running stream, the number of the first input chunk that its handler has not taken. From
        hello to welcome no input may be granted on another link: the gateway forgets what was granted.
        """
        return {s.command: s.input_taken for s in self.streams.values() if not s.ended}

    def stored(self, message: Numbered) -> None:
        """Remove `message`, which the gateway has stored."""
        if isinstance(message, Event):
            if self.events.pop(message.id, None) is not None and self._memory is not None:
                self._memory.event_stored(message.id)
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
