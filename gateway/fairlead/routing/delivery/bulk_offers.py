"""The offers of the lane `bulk`, which wait here: a few of them are delivered in each turn of the event loop.

A run offers hundreds of commands to the agents of one node at once. Writing them all to their sockets in one turn would
keep everybody else waiting for tens of milliseconds, and so would all the answers that come of it. The handler of
doorbells owns the only one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from fairlead.bus.doorbell import CommandOffered

logger = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""Offers in one turn, which takes about a millisecond."""


class BulkOffers:
    def __init__(self, deliver: Callable[[CommandOffered], None]) -> None:
        self._deliver = deliver
        self._waiting: deque[CommandOffered] = deque()

    def add(self, offer: CommandOffered) -> None:
        """Deliver this offer after those that wait."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.append(offer)

    def _turn(self) -> None:
        waiting = self._waiting
        for _ in range(min(AT_ONCE, len(waiting))):
            offer = waiting.popleft()
            try:
                self._deliver(offer)
            except Exception:
                logger.exception("delivering command %s failed", offer.command)
        if waiting:
            asyncio.get_running_loop().call_soon(self._turn)
