"""How far the nodes of a fleet are with a Disconnect, and which of them have not finished. Pure.

The runtime reads the nodes' reports from Redis and calls `disconnect_progress` in every pass; `step` decides by the
result whether the operation is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.fleet.directives.disconnect_report import DisconnectReport
from fairlead_operator.autoscaler.observation import FleetObservation, NodeMetrics


@dataclass(frozen=True, slots=True)
class DisconnectProgress:
    operation: str
    """The uid of the LinkOperation."""
    total: int
    """Links that existed when it began, as far as their nodes have counted them."""
    left: int
    """Those of them that have not been examined yet."""
    closed: int
    undecided: int
    """Links that are kept because Redis has lost the labels on which the selector depends."""
    waiting: tuple[str, ...]
    """Pods whose nodes have not finished."""

    @property
    def summary(self) -> str:
        parts = [f"{self.closed} links closed, {self.left} of {self.total} left to look at"]
        if self.undecided:
            parts.append(f"{self.undecided} stay because Redis has lost the labels of their agents")
        if self.waiting:
            more = f" and {len(self.waiting) - 3} more" if len(self.waiting) > 3 else ""
            parts.append(f"waiting for {', '.join(self.waiting[:3])}{more}")
        return "; ".join(parts)


def disconnect_progress(
    operation: str, reported: Mapping[str, DisconnectReport], nodes: NodeMetrics, fleet: FleetObservation
) -> DisconnectProgress:
    """`reported` has what each node has written, by lease. Pods that terminate or are gone are not waited for, because
    they close all their links anyway.
    """
    staying = {pod.name for pod in fleet.pods if not pod.leaving}
    through = {lease for lease, progress in reported.items() if not progress.left}
    waiting = [row.node for row in nodes.rows.values() if row.node in staying and row.lease not in through]
    lives = [progress for lease, progress in reported.items() if lease.partition("#")[0] in staying]
    return DisconnectProgress(
        operation,
        total=sum(one.total for one in reported.values()),
        left=sum(one.left for one in lives),
        closed=sum(one.closed for one in reported.values()),
        undecided=sum(one.undecided for one in reported.values()),
        waiting=tuple(sorted(waiting)),
    )
