"""The memory for incomplete messages: how much of it all connections of a server may use together, and who goes on when
it is short.

The read scheduler owns it. Each connection may use as much as is left of the larger part, so that many connections that
fill it get the same and none gets much. The rest is reserved for the oldest incomplete messages, as a whole, so that
they complete and free their memory: otherwise many honest senders would wait for each other. It reads nothing and
closes no connection; time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.carrier.reading.account import ReadAccount

SCARCE: Final = 16 << 10
"""Bytes of an incomplete message that each may have however little room is left: small messages always get through."""
PROMISED: Final = 4
"""One part in so many of the limit is for the oldest."""


class MessageMemory:
    """`limit` in bytes; `kept` of them are used."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept = 0
        self._promised = 0
        self._waiting: dict[ReadAccount, None] = {}

    def __len__(self) -> int:
        """Connections that wait for room."""
        return len(self._waiting)

    def note(self, account: ReadAccount, now: float, frames: int) -> None:
        """So many frames of it have been read, or something was kept: count anew."""
        kept = account.connection.kept
        self.kept += kept - account.kept
        account.kept = kept
        if frames or not account.since:
            account.since = now if kept else 0.0
        if account.promised:
            rest = 0 if frames or not kept else max(account.connection.wanted, 0)
            self._promised += rest - account.promised
            account.promised = rest

    def crowded(self, account: ReadAccount) -> bool:
        """Whether it has more than it may have: nothing more of it is read for now."""
        left = self.limit - self.limit // PROMISED - self.kept
        return not account.promised and account.kept > max(left, SCARCE)

    def wait(self, account: ReadAccount) -> None:
        """It is crowded: `admit` gives it back when there is room."""
        self._waiting[account] = None

    def forget(self, account: ReadAccount) -> None:
        self._waiting.pop(account, None)
        self.kept -= account.kept
        self._promised -= account.promised
        account.kept = account.promised = 0

    def admit(self, now: float) -> Iterator[ReadAccount]:
        """Those that may go on now, the oldest first."""
        while self._waiting:
            account = min(self._waiting, key=_age)
            if self.crowded(account):
                rest = max(account.connection.wanted, 1)
                if self._promised and self.kept + self._promised + rest > self.limit:
                    return
                self._promised += rest
                account.promised = rest
                account.since = now  # it begins anew: nobody has read it meanwhile
            del self._waiting[account]
            yield account


def _age(account: ReadAccount) -> float:
    return account.since
