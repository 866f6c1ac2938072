"""`ReadAccount`, the token buckets of one connection, `ReadBudget`, which fills them, and the interfaces that the
connection must have.

The read scheduler keeps one account for each connection that was read often or much recently, and none for the others.
This module decides nothing: it holds what `scheduler` and `message_memory` count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard

from fairlead.carrier.listener import Connection, Listener, MeteredListener

CREDIT: Final = 10.0
"""The depth of the buckets for messages and events: so many seconds' worth may arrive at once after a pause."""
BYTES_CREDIT: Final = 2.0
"""The depth of the bucket for bytes, in seconds like `CREDIT`."""
FRAGMENT: Final = 1024
"""A frame of at least this many bytes counts by its bytes alone, so that a message may be sent in fragments."""


class PausableConnection(Connection, Protocol):
    """A connection that the read scheduler can hold, which means that it pauses reading until the connection's turn."""

    @property
    def listener(self) -> Listener | None: ...

    @property
    def kept(self) -> int:
        """The number of bytes that the connection keeps: data not parsed yet, and parts of an incomplete message."""
        ...

    @property
    def wanted(self) -> int:
        """The number of bytes that are missing from the incomplete frame, as far as its header is known."""
        ...

    @property
    def keeps_frames(self) -> bool:
        """True if the connection keeps frames that can be read without further data. Always false for a connection that
        does not read frames itself.
        """
        ...

    def hold(self) -> bool:
        """Stop reading from the transport. Returns whether the listener had already stopped it."""
        ...

    def release(self, silent: bool) -> None:
        """Resume reading after `hold`, unless `silent`, which says that the listener has paused reading."""
        ...

    def cut(self, code: int, reason: str) -> None:
        """Close the connection, unless it is already closing, and ignore all data that still arrives."""
        ...


class FramedReader(PausableConnection, Protocol):
    """A connection that reads the frames itself, as many at a time as the caller asks for. In contrast, a foreign ASGI
    server delivers whole messages.
    """

    @property
    def unparsed(self) -> int:
        """The number of bytes that are not parsed yet."""
        ...

    def keep(self, data: bytes) -> None:
        """Store `data` without parsing it."""
        ...

    def feed(self, data: bytes, most: int) -> int:
        """Parse the stored data and then `data`, at most `most` frames of it. Returns how many frames were parsed."""
        ...


def can_feed(connection: PausableConnection) -> TypeGuard[FramedReader]:
    """Return `connection.keeps_frames`. It is true only for a `FramedReader`, so a type checker allows `feed` after
    this call."""
    return connection.keeps_frames


@dataclass(frozen=True, slots=True)
class ReadBudget:
    """The limits that the read scheduler enforces.

    For each link and second: `messages` that the peer was not asked for, `events` and `bytes`. For all links together:
    `incomplete`, the bytes of incomplete messages.
    """

    messages: float = 500.0
    events: float = 100.0
    bytes: float = 32 << 20
    incomplete: int = 32 << 20


DEFAULT_BUDGET: Final = ReadBudget()


class ReadAccount:
    """The token buckets and the scheduling state of one connection. `messages`, `events` and `bytes` are what may still
    be read from the connection. It has to wait while one of them is below 0.
    """

    __slots__ = (
        "bytes", "connection", "events", "held", "kept", "messages", "metered", "promised", "queued", "reading",
        "silent", "since", "strained", "used",
    )  # fmt: skip

    def __init__(self, connection: PausableConnection, metered: MeteredListener | None, budget: ReadBudget) -> None:
        self.connection = connection
        self.metered = metered
        self.messages = budget.messages * CREDIT
        self.events = budget.events * CREDIT
        self.bytes = budget.bytes * BYTES_CREDIT
        self.used = 0.0
        """Seconds spent reading this connection, halved with every tick."""
        self.strained = 0.0
        """Seconds for which the connection has been at its limit for messages."""
        self.kept = 0
        """The bytes that the connection kept when they were last counted."""
        self.since = 0.0
        """When the incomplete message began; 0 without an incomplete message."""
        self.promised = 0
        """Bytes that the connection may still use for that message, however little memory is left."""
        self.reading = False
        """True while the connection is being read."""
        self.held = False
        self.queued = False
        """True if the connection is held and waits only for its turn."""
        self.silent = False
        """True if the connection is held and its listener has paused reading as well."""

    @property
    def overdrawn(self) -> bool:
        return self.messages < 0 or self.events < 0 or self.bytes < 0

    def count(self, frames: int, size: int) -> None:
        """Count what was read: `frames`, which the peer was not asked for, and `size` bytes."""
        self.messages -= max(0, frames - size // FRAGMENT)
        self.bytes -= size

    def refill(self, budget: ReadBudget, seconds: float) -> None:
        """Add what `budget` allows for so many seconds."""
        self.messages = min(self.messages + budget.messages * seconds, budget.messages * CREDIT)
        self.events = min(self.events + budget.events * seconds, budget.events * CREDIT)
        self.bytes = min(self.bytes + budget.bytes * seconds, budget.bytes * BYTES_CREDIT)

    def is_full(self, budget: ReadBudget) -> bool:
        return (
            self.messages >= budget.messages * CREDIT
            and self.events >= budget.events * CREDIT
            and self.bytes >= budget.bytes * BYTES_CREDIT
        )
