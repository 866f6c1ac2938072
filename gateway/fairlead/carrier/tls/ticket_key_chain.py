"""Keys of session tickets for processes that have no file of them: made from one another, and changed twice a day.

Each process of a `fairlead serve` has a copy of the same chain, because it was forked from the one that made it, and
all derive the same keys from the same clock without a word between them. A new state is a hash of the last one, which
is forgotten: whoever reads a process's memory learns no key that was in use before. `ServerCertificate` asks for the
keys each time that it looks for changed files. It is pure: the time is an argument.
"""

from __future__ import annotations

import hashlib
import os
import time
from functools import cache
from typing import Final

from fairlead.carrier.tls.ticket_keys import SIZE

PERIOD: Final = 12 * 3600.0
"""Seconds for which a key encrypts new tickets."""
OVERLAP: Final = 7_200.0 + 60.0
"""Seconds for which the key before it still decrypts: the two hours of OpenSSL's tickets, and a minute in which a
process may not have changed its key yet."""


class TicketKeyChain:
    """A chain that began with this secret at this time."""

    def __init__(self, secret: bytes, began: float) -> None:
        self._state = secret
        self._since = began
        self._previous: bytes | None = None

    def keys(self, now: float) -> list[bytes]:
        """The key that encrypts; and behind it the one before, while its tickets are good."""
        while now - self._since >= PERIOD:
            self._previous = _derive(b"key", self._state, SIZE)
            self._state = _derive(b"next", self._state, len(self._state))
            self._since += PERIOD
        current = _derive(b"key", self._state, SIZE)
        if self._previous is not None and now - self._since < OVERLAP:
            return [current, self._previous]
        self._previous = None
        return [current]


def _derive(purpose: bytes, state: bytes, size: int) -> bytes:
    return hashlib.shake_256(purpose + b"\0" + state).digest(size)


@cache
def process_chain() -> TicketKeyChain:
    """The chain of this process and of those that it forks after the first call."""
    return TicketKeyChain(os.urandom(64), time.monotonic())
