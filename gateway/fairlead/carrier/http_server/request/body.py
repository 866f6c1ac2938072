"""The body of the request that a connection is reading: where it ends, and what may be read of it.

Each `HttpConnection` has one for all its requests, one after the other. It knows neither the parser nor the transport:
it counts, and the connection feeds, holds or drops data accordingly.
"""

from __future__ import annotations

from typing import Final

MAX_DISCARDED: Final = 4 << 20
"""Bytes of a body that are read and discarded after the request has been answered, so that the answer is not lost in a
reset. A longer rest ends the connection. It is more than the API accepts of any body, so what is a little too large
ends none."""
MAX_CODED: Final = 16 << 10
"""Bytes of a chunked body that are parsed before its request has shown a valid token. The parser makes a call for each
chunk, however small, and keeps a trailer of any length, so a read full of either would block the event loop."""


class RequestBody:
    """Counts the bytes of one body after the other."""

    __slots__ = ("_coded", "_discarded", "_left", "open")

    def __init__(self) -> None:
        self.open = False
        """True if the head of a request was fed, but not all of its body."""
        self._left: int | None = None
        """The number of bytes of the body that are still to come; None if only the parser knows."""
        self._coded = 0
        """The number of bytes of a chunked body that were parsed without a valid token."""
        self._discarded = 0

    def begin(self, length: bytes | None) -> None:
        """Record that the body of the next request begins. `length` is its Content-Length, or None if it is chunked."""
        self.open = True
        self._left = None if length is None else int(length)
        self._coded = self._discarded = 0

    def end(self) -> None:
        self.open = False

    @property
    def chunked(self) -> bool:
        return self._left is None

    @property
    def exhausted(self) -> bool:
        """Whether no more of a chunked body may be parsed without a valid token."""
        return self._coded >= MAX_CODED

    def ends_within(self, available: int) -> bool:
        """Whether the rest of the body is known to be among the next `available` bytes."""
        return self._left is not None and self._left <= available

    def allow(self, available: int, unproven: bool) -> int:
        """Return how many of the `available` bytes may be fed now, and count them. `unproven` says that the body is
        chunked and that its connection has not shown a valid token."""
        if self._left is not None:
            count = min(available, self._left)
            self._left -= count
        elif unproven:
            count = min(available, MAX_CODED - self._coded)
            self._coded += count
        else:
            count = available
        return count

    def discard(self, count: int) -> bool:
        """Count bytes that are discarded. Returns False if there are too many."""
        self._discarded += count
        return self._discarded <= MAX_DISCARDED
