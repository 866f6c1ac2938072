"""The queue of what follows when peers have left: sockets that are yet to be read, and protocols that are to be told.

Each `Poller` has one. Thousands of links that are lost at once share the turns of the event loop with all others, and
the end of a link takes several times as long as the read that finds it. So each turn does only a little of it, unless
something has waited for long. It never touches a socket.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("fairlead.carrier")

SPARE: Final = 0.0001
"""Seconds of a turn that it takes. A command to an agent takes some fifteen turns of the event loop, so each has to be
short while thousands of links end."""
LATE: Final = 1.0
"""Seconds after which something has waited for long: then it takes as much as the poller's reads, so that links which
come and go all the time do not let the queue grow."""


class LeavingQueue:
    def __init__(self, clock: Callable[[], float], turn: float) -> None:
        """`turn` are the seconds of a turn that it takes when something has waited for long."""
        self._clock = clock
        self._turn = turn
        self._calls: deque[tuple[Callable[[OSError | None], None], OSError | None, float]] = deque()
        """What to call, with what, and since when it waits."""
        self._scheduled = False
        """Whether a later turn makes calls."""
        self._closed = False

    def put(self, callback: Callable[[OSError | None], None], error: OSError | None) -> None:
        """Call it in a later turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._call)
        self._calls.append((callback, error, self._clock()))

    def close(self) -> None:
        """From now on, call all of them in the next turn."""
        self._closed = True

    def _call(self) -> None:
        calls, now = self._calls, self._clock()
        late = calls[0][2] < now - LATE
        until = math.inf if self._closed else now + (self._turn if late else min(SPARE, self._turn))
        while calls:
            callback, error, _ = calls.popleft()
            try:
                callback(error)
            except Exception:
                logger.exception("a connection could not be ended properly; the others continue")
            if calls and self._clock() > until:
                asyncio.get_running_loop().call_soon(self._call)
                return
        self._scheduled = False
