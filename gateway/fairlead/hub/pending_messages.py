"""The messages of one session that are received and not stored yet, and the flow control that bounds them.

`PendingMessages` is a base class of `Session` and not an object of its own, so that an idle link has no such object.
The session adds messages; the recorder (in `routing`) takes and stores them. Above a bound the connection is not read
until half of what is pending is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fairlead.hub.session_context import SessionContext
from fairlead.hub.session_handler import SessionConnection
from fairlead.wire.gateway_link import GatewayLink
from fairlead.wire.messages import Ack, Chunk, End, Event, FromAgent

if TYPE_CHECKING:
    from fairlead.hub.session import Session

PENDING_MESSAGES = 1_024
PENDING_BYTES = 1 << 20
"""The bounds of one session. All sessions of a node share another bound: see `Totals.session_limit`."""
OVERHEAD = 200
"""Bytes that a pending message costs besides its payload and its error."""


class PendingMessages(GatewayLink):
    __slots__ = ("connection", "context", "pending", "pending_bytes")

    def __init__(self, context: SessionContext) -> None:
        super().__init__()
        self.context = context
        self.connection: SessionConnection | None = None
        """None before the connection is open and after it is closed."""
        self.pending: list[FromAgent | None] | None = None
        """The numbered messages in order. None stands for a message that is only counted, and a Credit for one that is
        counted and whose credit is granted back. It is a list, which may be empty, from the first pending message until
        `take_pending` finds none left."""
        self.pending_bytes = 0

    @property
    def window(self) -> int:
        return self.context.window

    @property
    def paused(self) -> bool:
        """True while the connection is not read."""
        return self in self.context.paused

    def add_pending(self, message: FromAgent | None) -> None:
        """Keep `message` to be stored. Tells the handler, unless messages are already being stored."""
        pending, idle = self.pending, False
        if pending is None:
            pending, idle = [], True
            self.pending = pending
        pending.append(message)
        size, totals = pending_size(message), self.context.totals
        self.pending_bytes += size
        totals.pending += size
        held = self.pending_bytes
        too_much = held > PENDING_BYTES or held > totals.session_limit or len(pending) > PENDING_MESSAGES
        if too_much and not self.paused and self.connection is not None:
            self.context.paused.add(self)
            self.connection.pause_reading()
        if idle:
            self.context.handler.messages_pending(cast("Session", self))

    def take_pending(self, *, more: bool = False) -> list[FromAgent | None]:
        """Take all pending messages. The caller stores them, calls `confirm_stored`, and repeats until none are
        left. With `more` it repeats that in any case."""
        taken = self.pending or []
        self.pending = [] if taken or more else None
        return taken

    def confirm_stored(self, size: int) -> None:
        """Record that `size` pending bytes are stored. Resumes reading when at most half of the bound is left."""
        totals, paused = self.context.totals, self.context.paused
        self.pending_bytes -= size
        totals.pending -= size
        if self in paused and self.pending_bytes * 2 <= max(0, min(PENDING_BYTES, totals.session_limit)):
            paused.discard(self)
            if self.connection is not None:
                self.connection.resume_reading()

    def discard_pending(self) -> None:
        """Drop what is pending, because the link is over. The agent has no receipt for it and sends it again."""
        self.pending = None
        self.context.totals.pending -= self.pending_bytes
        self.pending_bytes = 0


def pending_size(message: FromAgent | None) -> int:
    """The bytes that a pending message counts."""
    kind = type(message)  # the exact type, because `getattr` takes three times as long
    if kind is Chunk or kind is Event:
        return OVERHEAD + len(message.payload)  # type: ignore[union-attr]
    if kind is End:
        size, error = OVERHEAD + len(message.payload), message.error  # type: ignore[union-attr]
    elif kind is Ack:
        size, error = OVERHEAD, message.error  # type: ignore[union-attr]
    else:
        return OVERHEAD
    return size if error is None else size + error.size
