"""The messages of one link that the recorder stores together, and what is left of them to do.

Only the recorder makes them. A batch grows while its events cannot be stored and its results can: those are forgotten
here, but for their number, because the receipt covers all messages before it. It does no I/O and reads no clock.
"""

from __future__ import annotations

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

    def __init__(self, messages: list[FromAgent | None]) -> None:
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

    def add(self, messages: list[FromAgent | None]) -> None:
        for message in messages:
            self.pending += pending_size(message)
            self.numbered += not (isinstance(message, Event) and message.qos == 0)
            if isinstance(message, Event):
                self.events.append(message)
            elif isinstance(message, Ack | Chunk | End):
                self.ops.setdefault(message.id, []).extend(append_ops(message))
                if isinstance(message, Chunk):
                    self.sizes[message.id] = self.sizes.get(message.id, 0) + len(message.payload)
                    if message.kind == OUTPUT:
                        self.terminals.append(message)
                else:
                    self.codes[message.id] = error_code(message)
                    if isinstance(message, End):
                        self.terminals.append(message)
            elif isinstance(message, Credit):
                self.grants[message.id] = self.grants.get(message.id, 0) + message.bytes

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
