"""The memory for incomplete messages: how much of it all connections of a server may use together, and which of them
continue when it is short.

The read scheduler owns it. Three quarters are shared: each connection may use as much as is left of them, so that many
connections that fill the memory get equal parts and none gets much. The last quarter is reserved for the oldest
incomplete messages. Each of these gets all the memory that it still needs, so that it completes and frees its memory;
otherwise many honest senders would wait for each other. This module reads no data, closes no connection and reads no
clock: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.carrier.reading.account import ReadAccount

SCARCE: Final = 16 << 10
"""Bytes of an incomplete message that each connection may keep, however little memory is left, so that small messages
always get through."""
PROMISED: Final = 4
"""The fraction of the limit that is reserved for the oldest messages is 1/`PROMISED`."""


class MessageMemory:
    """Counts the memory of incomplete messages. `limit` is its size in bytes; `kept` is how many of them are used."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept = 0
        self._promised = 0
        self._waiting: dict[ReadAccount, None] = {}

    def __len__(self) -> int:
        """The number of connections that wait for memory."""
        return len(self._waiting)

    def note(self, account: ReadAccount, now: float, frames: int) -> None:
        """Count the memory of `account` again, after `frames` of its frames were read or some data was kept."""
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
        """Return whether `account` keeps more than it may: its connection must not be read until `admit` returns it."""
        left = self.limit - self.limit // PROMISED - self.kept
        return not account.promised and account.kept > max(left, SCARCE)

    def wait(self, account: ReadAccount) -> None:
        """Let `account`, which is crowded, wait until `admit` returns it because there is memory for it."""
        self._waiting[account] = None

    def forget(self, account: ReadAccount) -> None:
        self._waiting.pop(account, None)
        self.kept -= account.kept
        self._promised -= account.promised
        account.kept = account.promised = 0

    def admit(self, now: float) -> Iterator[ReadAccount]:
        """Yield the waiting accounts that may continue now, the oldest first."""
        while self._waiting:
            account = min(self._waiting, key=_age)
            if self.crowded(account):
                rest = max(account.connection.wanted, 1)
                if self._promised and self.kept + self._promised + rest > self.limit:
                    return
                self._promised += rest
                account.promised = rest
                account.since = now  # its time begins again, because its connection was not read meanwhile
            del self._waiting[account]
            yield account


def _age(account: ReadAccount) -> float:
    return account.since
