"""The messages of one link that the recorder stores together, and what is left of them to do.

Only the recorders make them. A batch grows while its events cannot be stored and its results can: those are forgotten
here, but for their number, because the receipt covers all messages before it. It does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.hub.pending_messages import pending_size
from fairlead.routing.delivery.recording.append_ops import append_ops, error_code
from fairlead.routing.delivery.terminal_recording import OUTPUT
from fairlead.store.reply import Arg
from fairlead.wire.messages import Ack, Chunk, Credit, End, Event, FromAgent


class MessageBatch:
    """The messages that one pass of the recorder stores, by command."""

    __slots__ = (
        "again", "codes", "dropped", "events", "grants", "numbered", "ops", "pending", "sizes", "terminals",
    )  # fmt: skip

    def __init__(self, messages: Sequence[FromAgent | None]) -> None:
        self.ops: dict[str, list[Arg]] = {}
        """The append operations of each command that are not stored yet."""
        self.events: list[Event] = []
        """The events that are not stored yet."""
        self.codes: dict[str, str] = {}
        """The code of the error with which the agent ended each command."""
        self.sizes: dict[str, int] = {}
        """The bytes of results of each command."""
        self.grants: dict[str, int] = {}
        """The bytes of unwanted chunks of each command, which are granted back at once."""
        self.terminals: list[Chunk | End] = []
        """The output of terminals that is not recorded yet, and the ends of all commands."""
        self.dropped = 0
        """The older events of this agent that were removed for those of the batch."""
        self.again = 0.0
        """When the events that could not be stored are tried again, by the event loop's time; 0 if none failed."""
        self.numbered = self.pending = 0
        """The messages that the receipt counts, and the bytes that the session counts as pending."""
        self.add(messages)

    def add(self, messages: Sequence[FromAgent | None]) -> None:
        for message in messages:
            self.pending += pending_size(message)
            kind = type(message)  # the exact type, because isinstance takes three times as long
            if kind is Event:
                self.numbered += message.qos != 0  # type: ignore[union-attr]
                self.events.append(message)  # type: ignore[arg-type]
                continue
            self.numbered += 1
            if kind is Credit:
                self.grants[message.id] = self.grants.get(message.id, 0) + message.bytes  # type: ignore[union-attr]
            elif kind is Ack or kind is Chunk or kind is End:
                self._add_result(message)  # type: ignore[arg-type]

    def _add_result(self, message: Ack | Chunk | End) -> None:
        command = message.id
        ops = self.ops.get(command)
        if ops is None:
            ops = self.ops[command] = []
        ops += append_ops(message)
        if type(message) is Chunk:
            self.sizes[command] = self.sizes.get(command, 0) + len(message.payload)
            if message.kind == OUTPUT:
                self.terminals.append(message)
            return
        self.codes[command] = error_code(message)  # type: ignore[arg-type]  # it is no Chunk
        if type(message) is End:
            self.terminals.append(message)

    def due_events(self, now: float) -> list[Event]:
        """The events to store at the time `now`: one after a failure, so that many of them do not cost an attempt
        each."""
        if not self.again:
            return list(self.events)
        return self.events[:1] if now >= self.again else []

    def release(self) -> int:
        """Forget what is stored, which is all but the events. Returns its pending bytes."""
        left = sum(map(pending_size, self.events))
        stored, self.pending = self.pending - left, left
        self.codes.clear()
        self.terminals.clear()
        return stored
