"""How long a batch waits for the server's replies, without mistaking a pause of this process for silence of the server.

Used by the pipeliner alone. When the event loop has stood still (the process was short of CPU or stopped, or one turn
took long), its timers are run before its sockets are read: a plain timeout would then end a batch whose replies have
come.
"""

from __future__ import annotations

import asyncio

LAST_PART = 0.25
"""Of the time: the timer looks at the loop once before the end, with so much of it left to read what lies there."""
LATE = 0.5
"""Of that part: a timer that is run later than by this tells that the loop stood still."""


class ReplyDeadline:
    """`timeout` is to be entered at once; it raises TimeoutError when no reply has come for `seconds`, or all has taken
    `most` seconds. After a pause of the event loop it begins anew. `stop` ends it.
    """

    __slots__ = ("_at", "_fires", "_last", "_last_part", "_loop", "_seconds", "_timer", "timeout")

    def __init__(self, seconds: float, most: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._last_part = seconds * LAST_PART
        now = self._loop.time()
        self._at = now + seconds
        self._last = now + most
        self._fires = self._at - self._last_part
        self._timer = self._loop.call_at(self._fires, self._look)
        self.timeout = asyncio.timeout(None)

    def progress(self) -> None:
        """Replies have come."""
        self._at = min(self._loop.time() + self._seconds, self._last)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if now - self._fires > self._last_part * LATE:
            self._at = now + self._seconds
        elif now >= self._at:
            self.timeout.reschedule(now)
            return
        soon = self._at - self._last_part
        self._fires = soon if soon > now else self._at
        self._timer = self._loop.call_at(self._fires, self._look)
