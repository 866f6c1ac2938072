"""A part of the demo that is started again when it ends, for as long as that helps.

Used by `stage`, once all parts have been ready. Whoever kills a part is told in one line what ended, when it is
started again and what to watch meanwhile, and in another that it is back. A part that fails by itself, again and again,
ends the demo with its last words: a port that somebody has taken does not come back by trying.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from fairlead.cli.child_processes import how, restart_pause
from fairlead.cli.demo.processes import Process, tail
from fairlead.errors import FairleadError

MOST_FAILURES = 4
"""In a row: with the pauses between them some 10 s."""
STABLE = 30.0
"""Seconds after which a part that ends by itself counts as one that had worked."""
SLOW = 30.0
"""Seconds until it is told that a part is not ready yet."""
POLL = 0.1
ASKED = (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Codes of a process that somebody has ended: no fault of its own. A drained node exits with 0."""

Ready = Callable[[], Awaitable[bool]]


class RestartedProcess:
    """One process and what the demo says of it. `effect` is what its end means for a reader, and what to watch."""

    def __init__(self, process: Process, is_ready: Ready, effect: str, tell: Callable[[str], None]) -> None:
        self.process = process
        self.is_ready = is_ready
        self._effect = effect
        self._tell = tell
        self._failures = 0
        """In a row."""

    async def keep(self) -> NoReturn:
        """Start the process again whenever it ends. It must be ready. Raises FairleadError when that does not help."""
        while True:
            started = time.monotonic()
            await self.process.ended()
            if self.process.code in ASKED:
                self._failures = 0
                last_words = ""
            else:
                self._failures = self._failures + 1 if time.monotonic() - started < STABLE else 1
                last_words = f", its log is {self.process.log}"
            await self._revive(f"(pid {self.process.pid}) ended {how(self.process.code)}{last_words}")

    async def _revive(self, end: str) -> None:
        """Return when it is ready again. `end` tells how it ended."""
        while True:
            if self._failures >= MOST_FAILURES:
                raise FairleadError(
                    f"{self.process.name} failed {self._failures} times in a row, so it is not started again: it {end}"
                    f"; the last lines of {self.process.log}:\n{tail(self.process.log)}"
                )
            pause = restart_pause(max(0, self._failures - 1), random.random())
            self._tell(f"{self.process.name} {end}; it is started again in {pause:.1f} s. {self._effect}")
            await asyncio.sleep(pause)
            try:
                await self.process.start()
            except (FairleadError, OSError) as e:
                end = f"could not be started: {str(e).splitlines()[0]}"
            else:
                if await self._becomes_ready():
                    self._tell(f"{self.process.name} is back (pid {self.process.pid})")
                    return
                end = f"(pid {self.process.pid}) ended {how(self.process.code)} before it was ready"
            self._failures += 1

    async def _becomes_ready(self) -> bool:
        """False when it ends before."""
        late = time.monotonic() + SLOW
        while not await self.is_ready():
            if self.process.code is not None:
                await self.process.ended()
                return False
            if late and time.monotonic() > late:
                late = 0.0
                self._tell(f"{self.process.name} is not ready after {SLOW:g} s; its log is {self.process.log}")
            await asyncio.sleep(POLL)
        return True
