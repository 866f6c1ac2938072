"""What the operator tells the nodes besides the number of pods: which of them leave new links to others, how many links
each keeps, and when load balancers notice. `simulation` owns it and calls it in every second.

A node reads the directives with its heartbeat. It has enough links by the gateway's own rule (`EnoughLinks` of
`fairlead.fleet.directives.rebalance_target`, here for all nodes at once). One that leaves new links to others answers
its readiness probe with 503 and keeps the links that it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fairlead.fleet.directives.exclusion import SETTLE
from fairlead.fleet.directives.rebalance_target import SLACK, RebalanceTarget
from fairlead_operator.simulator.arrays import Counts, Flags
from fairlead_operator.simulator.fleet.pod_table import FAR, PodTable

PROBE_SECONDS = 2
"""periodSeconds of the readiness probe that the operator requests."""
PROBE_FAILURES = 2
"""Its failureThreshold."""
ENDPOINT_SECONDS = 1
"""Seconds until load balancers know that a pod is ready or unready, which is what SETTLE allows for it."""
UNREADY_SECONDS = PROBE_SECONDS * PROBE_FAILURES + ENDPOINT_SECONDS
READY_SECONDS = PROBE_SECONDS + ENDPOINT_SECONDS


@dataclass(frozen=True, slots=True)
class Directives:
    """The operator's directives, which are valid until its next pass."""

    preferred: int | None = None
    """The revision whose pods take all new links during a rollout; None while all pods do."""
    targets: Mapping[str, RebalanceTarget] = field(default_factory=dict)
    """What a rebalance asks of each pod's node; empty while none runs."""
    move_limit: float = math.inf
    """Moves per second that the rebalance allows."""


NO_DIRECTIVES = Directives()


class NodeDirectives:
    def __init__(self, pods: PodTable) -> None:
        self._pods = pods
        self._known = NO_DIRECTIVES
        self._target_since = 0
        """Second at which the nodes first read of this rebalance."""

    def read(self, directives: Directives, now: int) -> None:
        """All nodes read what the operator has told them."""
        pods, targets = self._pods, directives.targets
        if targets and not self._known.targets:
            self._target_since = now
        self._known = directives
        if not targets:
            pods.target[:] = pods.enough[:] = FAR
            return
        asked = [targets.get(name) for name in pods.names]
        pods.target[:] = [FAR if one is None else one.keep for one in asked]
        pods.enough[:] = [FAR if one is None or one.enough is None else one.enough for one in asked]

    def apply(self, now: int) -> None:
        """Each node decides whether it takes new links."""
        pods, known = self._pods, self._known
        if known.preferred is None and not known.targets:
            if not pods.excluded.any():
                return
            excluded = np.zeros(len(pods), np.bool_)
        else:
            pods.has_enough = enough_links(pods.links, pods.enough, pods.has_enough)
            excluded = pods.has_enough.copy()
            if known.preferred is not None:
                excluded |= pods.revision != known.preferred
            excluded &= pods.started
        begins, ends = excluded & ~pods.excluded, ~excluded & pods.excluded
        pods.excluded = excluded
        if begins.any():
            pods.unready_at[begins] = now + UNREADY_SECONDS
        if ends.any():
            noticed = ends & (pods.unready_at <= now)
            pods.ready_at[noticed] = now + READY_SECONDS
            pods.unready_at[ends] = FAR

    @property
    def move_limit(self) -> float:
        return self._known.move_limit

    def kept(self, now: int) -> Counts | None:
        """Links that each pod keeps at most; None while no links are moved."""
        if not self._known.targets or now - self._target_since < SETTLE:
            return None
        return self._pods.target


def enough_links(links: Counts, enough: Counts, reached: Flags) -> Flags:
    """Which nodes have enough links, by the rule of the gateway's `EnoughLinks`. `reached` are those that had enough
    before. `enough` is FAR for a node that takes new links without a limit.
    """
    result: Flags = (links >= enough) | (reached & (links >= enough * (1 - SLACK)))
    return result
