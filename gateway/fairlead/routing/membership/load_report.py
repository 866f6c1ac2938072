"""What a node reports about its load with each heartbeat: counts, and how many more links it could accept per second.

`Heartbeat` asks for the fields of the node's row. The operator scales by them, and the budget of moves follows from
them (see `fleet.moves.move_rate`).
"""

from __future__ import annotations

import time
from pathlib import Path

from fairlead.fleet.moves.move_rate import spare_accept_rate
from fairlead.hub.hub import Hub
from fairlead.routing.membership.memory_share import memory_share
from fairlead.routing.membership.readiness import Readiness
from fairlead.routing.membership.traffic_counter import TrafficCounter
from fairlead.settings import Settings
from fairlead.telemetry.loop_lag import LoopLag
from fairlead.version import __version__

SCHEDSTAT = Path("/proc/self/schedstat")


class IdleShare:
    """The share of time in which the process's main thread, which runs the event loop, had nothing to do.

    A thread that waits for a CPU is not idle, whoever has the CPU: its neighbours on the machine, or nobody because the
    limit of its container is used up. Linux reports both times in /proc/self/schedstat (sched-stats.rst: nanoseconds on
    a CPU, nanoseconds on a run queue). Elsewhere only the CPU time of the process is known.
    """

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._busy = _busy_seconds()

    def measure(self) -> float:
        """The idle share since the last call, from 0 to 1."""
        now, busy = time.monotonic(), _busy_seconds()
        seconds, spent = now - self._at, busy - self._busy
        self._at, self._busy = now, busy
        return min(1.0, max(0.0, 1 - spent / seconds)) if seconds > 0 else 1.0


def _busy_seconds() -> float:
    try:
        ran, waited, _ = SCHEDSTAT.read_bytes().split()
        return (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):
        return time.process_time()


class LoadReport:
    def __init__(
        self, settings: Settings, hub: Hub, readiness: Readiness, traffic: TrafficCounter, loop_lag: LoopLag
    ) -> None:
        self._hub = hub
        self.readiness = readiness
        self._traffic = traffic
        self._loop_lag = loop_lag
        self._capacity = settings.capacity
        self._accept_rate = settings.planned_accept_rate
        self._has_sinks = int(settings.event_sinks is not None)
        self._idle: IdleShare | None = None
        self._accepted = 0
        self._measured_at = 0.0

    def fields(self) -> dict[str, str | int | float]:
        """The fields of the node's row."""
        hub = self._hub
        if self._idle is None:  # a node that has just started has no work yet, but has used its CPU to start
            self._idle = IdleShare()
            idle = 1.0
        else:
            idle = self._idle.measure()
        return {
            "state": "draining" if hub.draining else "serving",
            "links": hub.links,
            "capacity": self._capacity,
            "accepted": hub.accepted,
            "refused": hub.refused,
            "rejected": hub.rejected,
            "lag_ms": round(self._loop_lag.last * 1000, 3),
            "in_flight": hub.totals.streams,
            "moved": hub.moved,
            "left": hub.left,
            "spare_accept_rate": self._spare(idle),
            "excluded_by": self.readiness.reported() or "",
            "cpu": round(1 - idle, 2),
            "memory": round(memory_share(), 2),
            "has_sinks": self._has_sinks,
            "version": __version__,
            **self._traffic.fields(),
        }

    def _spare(self, idle: float) -> float:
        """The links a second that this node could accept besides its work since the last report."""
        now, accepted = time.monotonic(), self._hub.accepted
        first = self._measured_at == 0.0
        accepting = 0.0 if first else (accepted - self._accepted) / max(now - self._measured_at, 0.001)
        self._accepted, self._measured_at = accepted, now
        if self._hub.draining or self.readiness.exclusion() is not None:
            return 0.0
        # In tenths: a status that shows the sum of these rates should not change with every pass.
        return round(
            spare_accept_rate(self._accept_rate, round(idle, 1), accepting, self._hub.links, self._capacity), 3
        )
