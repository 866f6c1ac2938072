"""How long the event loop of this process is blocked: the delay of a timer, and the pauses of the garbage collector.

The node owns it. A timer that runs four times a second observes every pause longer than its period, and shorter ones in
proportion to their number. The garbage collector reports its own start and stop.
"""

from __future__ import annotations

import asyncio
import gc
import time

from fairlead.telemetry.metrics import Metrics

PERIOD = 0.25


class LoopLag:
    def __init__(self, metrics: Metrics) -> None:
        self.last = 0.0
        """The seconds by which the timer was late the last time."""
        self._lag = metrics.lag
        self._pauses = tuple(metrics.pauses.of(str(generation)) for generation in range(3))
        self._timer: asyncio.TimerHandle | None = None
        self._expected_at = 0.0
        self._began = 0.0

    def start(self) -> None:
        """Start the timer on the running event loop."""
        gc.callbacks.append(self._collected)
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.callbacks.remove(self._collected)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._expected_at = loop.time() + PERIOD
        self._timer = loop.call_later(PERIOD, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        # The clock of uvloop counts whole milliseconds, so a timer may run up to 1 ms too early.
        self.last = max(0.0, loop.time() - self._expected_at)
        self._lag.observe(self.last)
        self._arm(loop)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._pauses[info["generation"]].observe(time.perf_counter() - self._began)
