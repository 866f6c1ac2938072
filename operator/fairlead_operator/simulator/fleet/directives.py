"""What modelled nodes do with what the operator tells them: when they know it, which of them leave new links to others,
and when their moves begin. Owned by `simulation`.

A node reads its target with its heartbeat, and applies the gateway's own rule (`fairlead.fleet.directives.exclusion`)
to it. Load balancers know that a node has become unready, or ready, after two probes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fairlead.fleet.directives.exclusion import SETTLE
from fairlead.fleet.directives.rebalance_target import EnoughLinks, RebalanceTarget
from fairlead_operator.simulator.arrays import Counts, Flags
from fairlead_operator.simulator.fleet.pod_table import PodTable

PROBE_SECONDS = 4
"""Two probes."""


class NodeDirectives:
    def __init__(self) -> None:
        self._targets: Mapping[str, RebalanceTarget] = {}
        self._since = 0
        """Second at which the nodes first heard of these targets."""
        self._enough: dict[str, EnoughLinks] = {}
        """By the name of the pod."""

    def hear(self, targets: Mapping[str, RebalanceTarget], now: int) -> None:
        """A heartbeat."""
        if not self._targets:
            self._since = now
        self._targets = targets

    def probe(self, pods: PodTable) -> None:
        """What the last two probes have found holds from now on."""
        pods.excluded[:] = pods.unready
        if not self._targets:
            self._enough = {}
            pods.unready[:] = False
            return
        known, self._enough = self._enough, {}
        for i, (name, links) in enumerate(zip(pods.names, pods.links.tolist(), strict=True)):
            self._enough[name] = one = known.get(name) or EnoughLinks()
            target = self._targets.get(name)
            pods.unready[i] = one.reached(links, None if target is None else target.enough)

    def receiving(self, pods: PodTable) -> Flags:
        """Pods that take new links and will do so until the next pass."""
        targets = (self._targets.get(name) for name in pods.names)
        may = np.fromiter((one is None or one.enough is None for one in targets), np.bool_, len(pods))
        return pods.taking & may

    def kept(self, pods: PodTable, capacity: int, now: int) -> Counts | None:
        """Links that each pod keeps at most; None while no links are moved."""
        if not self._targets or now - self._since < SETTLE:
            return None
        targets = (self._targets.get(name) for name in pods.names)
        return np.array([capacity if one is None else one.keep for one in targets], np.int64)
