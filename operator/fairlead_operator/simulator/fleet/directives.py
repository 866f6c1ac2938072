"""What the operator tells the nodes besides the number of pods, and when a load balancer notices. `simulation` calls it
with every heartbeat: that is when a node reads the directives.

A node that should take no new links answers its readiness probe with 503 and keeps the links that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fairlead_operator.simulator.arrays import Flags
from fairlead_operator.simulator.fleet.pod_table import FAR, PodTable

PROBE_SECONDS = 2
"""periodSeconds of the readiness probe that the operator requests."""
PROBE_FAILURES = 2
"""Its failureThreshold."""
ENDPOINT_SECONDS = 3
"""Until load balancers know that a pod is ready or unready."""
UNREADY_SECONDS = PROBE_SECONDS * PROBE_FAILURES + ENDPOINT_SECONDS
READY_SECONDS = PROBE_SECONDS + ENDPOINT_SECONDS


@dataclass(frozen=True, slots=True)
class Directives:
    """They hold until the next pass of the operator."""

    preferred: int | None = None
    """The revision whose pods take all new links during a rollout; None while all pods do."""
    targets: Mapping[str, int] = field(default_factory=dict)
    """Links that each pod keeps at most; empty while no rebalance runs."""


NO_DIRECTIVES = Directives()


def read(pods: PodTable, directives: Directives, now: int) -> None:
    """All nodes read what the operator has told them."""
    targets = directives.targets
    pods.target[:] = [targets.get(name, FAR) for name in pods.names] if targets else FAR
    if directives.preferred is None:
        _take_links(pods, np.ones(len(pods), np.bool_), now)
    else:
        _take_links(pods, pods.revision == directives.preferred, now)


def _take_links(pods: PodTable, willing: Flags, now: int) -> None:
    """These nodes take new links and the others do not; whoever changes its mind is ready or unready a little later."""
    refusing = pods.unready_at != FAR
    stops = ~willing & ~refusing & pods.started
    pods.unready_at[stops] = now + UNREADY_SECONDS
    resumes = willing & refusing
    noticed = resumes & (pods.unready_at <= now)
    pods.ready_at[noticed] = now + READY_SECONDS
    pods.unready_at[resumes] = FAR
