"""The timeout of a batch, which does not mistake a pause of this process for silence of the server.

Only the pipeliner uses it. After a pause (the process was short of CPU or stopped, or one iteration of the event loop
took long), asyncio runs its timers before it reads its sockets. A plain timeout would then fail a batch whose replies
have already arrived.
"""

from __future__ import annotations

import asyncio

LAST_PART = 0.25
"""Fraction of the timeout. The timer runs once this long before the end, to find out whether there was a pause; the
time left suffices to read the replies that have arrived."""
LATE = 0.5
"""Fraction of that last part. A timer that runs late by more than this shows that the event loop was paused."""


class ReplyDeadline:
    """A timeout for one batch. Enter `timeout` at once, as a context manager, and call `stop` at the end.

    `timeout` raises TimeoutError when no reply has come for `seconds`, or when the batch has taken `most` seconds.
    After a pause of the event loop, the time begins again.
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
        self._timer = self._loop.call_at(self._fires, self._check)
        self.timeout = asyncio.timeout(None)

    def progress(self) -> None:
        """Record that replies have arrived: the time begins again."""
        self._at = min(self._loop.time() + self._seconds, self._last)

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        now = self._loop.time()
        if now - self._fires > self._last_part * LATE:
            self._at = now + self._seconds
        elif now >= self._at:
            self.timeout.reschedule(now)
            return
        soon = self._at - self._last_part
        self._fires = soon if soon > now else self._at
        self._timer = self._loop.call_at(self._fires, self._check)
