"""Remembers which pods leave new links to others while Redis cannot be read. Pure.

Such a pod is unready for Kubernetes, and only its node's row distinguishes it from one that cannot serve. A pass
without rows uses those that were read last, for as long as they can still be true. Each reconciler has one and asks it
in every pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fairlead.fleet.directives.exclusion import SETTLE
from fairlead_operator.autoscaler.observation import FRESH, NodeMetrics

HOLDS = 30.0 + SETTLE
"""Seconds after the last read for which it holds: without renewal, a node follows a directive for at most 30 s (the
preferred revision; a target of a rebalance only until its heartbeats are overdue), and then takes a moment to become
ready."""


class KnownExclusions:
    def __init__(self) -> None:
        self._reasons: Mapping[str, str] = {}
        self._read_at = -math.inf

    def observe(self, nodes: NodeMetrics | None, now: float) -> Mapping[str, str]:
        """Why each excluded pod leaves new links to others, by its name. `nodes` is None when Redis could not be read;
        `now` is a clock in seconds that only goes forward."""
        if nodes is not None:
            self._read_at = now
            self._reasons = {
                name: row.excluded_by
                for name, row in nodes.rows.items()
                if row.excluded_by and nodes.now - row.at <= FRESH * 1000
            }
        elif now - self._read_at > HOLDS:
            self._reasons = {}
        return self._reasons
