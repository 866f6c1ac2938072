"""A process of the demo that is restarted when it ends, unless it keeps failing.

Used by `demo`, once all processes have been ready. One line reports what ended, when it is restarted and what to watch
meanwhile, and another that it is back. A process that keeps failing by itself ends the demo with the last lines of its
log, because trying again does not free a port that another program has taken.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from fairlead.cli.child_processes import describe_exit, restart_delay
from fairlead.cli.demo.processes import Process, tail
from fairlead.errors import FairleadError

MOST_FAILURES = 4
"""Failures in a row after which the demo ends: with the delays between them, some 10 s."""
STABLE = 30.0
"""Seconds after which a process counts as having worked: a later failure is again the first in a row."""
SLOW = 30.0
"""Seconds until a process that is not ready yet is reported."""
POLL_INTERVAL = 0.1
ENDED_BY_USER = (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Exit codes of a process that somebody has stopped, which is no failure. A drained node exits with 0."""

IsReady = Callable[[], Awaitable[bool]]


class RestartedProcess:
    """One process, and what the demo reports about it. `effect` is what its end means for the user."""

    def __init__(self, process: Process, is_ready: IsReady, effect: str, report: Callable[[str], None]) -> None:
        self.process = process
        self.is_ready = is_ready
        self._effect = effect
        self._report = report
        self._failures = 0
        """Failures in a row."""

    async def supervise(self) -> NoReturn:
        """Restart the process whenever it ends. It must be ready. Raises FairleadError when restarts do not help."""
        while True:
            started = time.monotonic()
            await self.process.ended()
            if self.process.code in ENDED_BY_USER:
                self._failures = 0
                log = ""
            else:
                self._failures = self._failures + 1 if time.monotonic() - started < STABLE else 1
                log = f", its log is {self.process.log}"
            await self._restart(f"(pid {self.process.pid}) ended {describe_exit(self.process.code)}{log}")

    async def _restart(self, end: str) -> None:
        """Return when the process is ready again. `end` says how it ended."""
        while True:
            if self._failures >= MOST_FAILURES:
                raise FairleadError(
                    f"{self.process.name} is not restarted, because it failed {self._failures} times in a row: it {end}"
                    f"; the last lines of {self.process.log}:\n{tail(self.process.log)}"
                )
            delay = restart_delay(max(0, self._failures - 1), random.random())
            self._report(f"{self.process.name} {end}; it is restarted in {delay:.1f} s. {self._effect}")
            await asyncio.sleep(delay)
            try:
                await self.process.start()
            except (FairleadError, OSError) as e:
                end = f"could not be started: {str(e).splitlines()[0]}"
            else:
                if await self._becomes_ready():
                    self._report(f"{self.process.name} is back (pid {self.process.pid})")
                    return
                end = f"(pid {self.process.pid}) ended {describe_exit(self.process.code)} before it was ready"
            self._failures += 1

    async def _becomes_ready(self) -> bool:
        """False if the process ends first."""
        report_at = time.monotonic() + SLOW
        while not await self.is_ready():
            if self.process.code is not None:
                await self.process.ended()
                return False
            if report_at and time.monotonic() > report_at:
                report_at = 0.0
                self._report(f"{self.process.name} is not ready after {SLOW:g} s; its log is {self.process.log}")
            await asyncio.sleep(POLL_INTERVAL)
        return True
