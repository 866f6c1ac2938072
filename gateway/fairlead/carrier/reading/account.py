"""The account of one connection that was read much recently, and what the read scheduler needs of such a connection."""

from __future__ import annotations

from typing import Protocol, TypeGuard

from fairlead.carrier.listener import Connection, Listener, MeteredListener


class PausableConnection(Connection, Protocol):
    """A connection that can be held."""

    @property
    def listener(self) -> Listener | None: ...

    @property
    def kept(self) -> int:
        """Bytes of it that are not parsed yet, or of an incomplete message."""
        ...

    @property
    def wanted(self) -> int:
        """Bytes that the frame which is incomplete still lacks, as far as its head is known."""
        ...

    @property
    def ripe(self) -> bool:
        """Frames are kept that can be read without anything more: never of a connection that reads no frames itself."""
        ...

    def hold(self) -> bool:
        """Stop reading from the transport; whether the listener had stopped it already."""
        ...

    def release(self, silent: bool) -> None:
        """No more held: read on, unless `silent`, which the listener wants."""
        ...

    def cut(self, code: int, reason: str) -> None:
        """Close, unless it is closing already, and ignore whatever still comes."""
        ...


class FramedReader(PausableConnection, Protocol):
    """One that reads the frames itself, as many at a time as it is told. A foreign server gives whole messages."""

    @property
    def unparsed(self) -> int:
        """Bytes of it that are not parsed yet."""
        ...

    def keep(self, data: bytes) -> None:
        """Take what arrived without reading it."""
        ...

    def feed(self, data: bytes, most: int) -> int:
        """Read what is kept and `data`, at most so many frames; returns how many."""
        ...


def is_ripe(connection: PausableConnection) -> TypeGuard[FramedReader]:
    """`ripe`, for who goes on to feed: only one that reads frames itself can be so."""
    return connection.ripe


class ReadAccount:
    """The buckets of one connection, and where it stands. `messages`, `events` and `bytes` are what it may still have
    read of it; below 0 it has to wait."""

    __slots__ = (
        "bytes", "connection", "events", "held", "kept", "messages", "metered", "promised", "queued", "reading",
        "silent", "since", "strained", "used",
    )  # fmt: skip

    def __init__(
        self,
        connection: PausableConnection,
        metered: MeteredListener | None,
        messages: float,
        events: float,
        octets: float,
    ) -> None:
        self.connection = connection
        self.metered = metered
        self.messages = messages
        self.events = events
        self.bytes = octets
        self.used = 0.0
        """Seconds of reading, halved with every tick."""
        self.strained = 0.0
        """Seconds for which it has been at the limit of its messages."""
        self.kept = 0
        """Bytes that it keeps, as they were last counted."""
        self.since = 0.0
        """When the message that is incomplete began, 0 for none."""
        self.promised = 0
        """Bytes that it may still have for that message, however little room is left."""
        self.reading = False
        """It is being read right now."""
        self.held = False
        self.queued = False
        """It is held and waits for its turn, and for nothing else."""
        self.silent = False
        """It is held, and its listener wants it not to be read."""

    @property
    def overdrawn(self) -> bool:
        return self.messages < 0 or self.events < 0 or self.bytes < 0
