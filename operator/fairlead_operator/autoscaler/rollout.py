"""Which pods take new links during a rollout: `direct_links` decides whether those of the new revision alone do. Pure.

A Deployment removes old pods one after the other. An agent that leaves one old pod and connects to another old pod has
to move again. So as soon as the new pods can take all links, the old pods leave their Services and keep the links that
they have: each agent then moves once. The reconciler calls `direct_links` in every pass and writes the result to Redis,
where it expires by itself. If the new pods refuse links, the old pods take new links again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.gateway_status import DecisionInputs
from fairlead_operator.autoscaler.observation import FleetObservation
from fairlead_operator.autoscaler.rules.failure_tolerance import FILL_AFTER_FAILURE, tolerant_pods

REFUSAL_MEMORY = 30.0
"""Seconds without a refused link after which the new pods are trusted again: three passes, so that the readiness of the
old pods does not follow every single refusal."""


@dataclass(frozen=True, slots=True)
class RolloutHistory:
    """What is remembered of a rollout from one pass to the next."""

    revision: str = ""
    """The revision that replaces the others."""
    refused: tuple[tuple[str, int], ...] = ()
    """Links that each of its pods has refused since its start, as last reported."""
    refusing_at: float = -math.inf
    """When one of them last reported a new refusal."""

    def observe(self, fleet: FleetObservation, now: float) -> RolloutHistory:
        """The history after this observation; a refusal before a pod's first report counts as well."""
        if not fleet.rollout:
            return RolloutHistory()
        if not fleet.revision or not fleet.readable:
            return self
        before = self if self.revision == fleet.revision else RolloutHistory()
        known = dict(before.refused)
        counts = {pod.name: pod.refused for pod in fleet.fresh_pods if pod.revision == fleet.revision}
        more = any(count > known.get(name, 0) for name, count in counts.items())
        return RolloutHistory(fleet.revision, tuple((known | counts).items()), now if more else before.refusing_at)


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """Where new links go. `revision` is the one whose pods take all of them, "" while all ready pods do."""

    revision: str
    reason: str


def direct_links(
    fleet: FleetObservation, inputs: DecisionInputs, history: RolloutHistory, spec: LinkGatewaySpec, now: float
) -> LinkDirection:
    """`history` is the one after the observation of `fleet`, `inputs` are the numbers of this pass's decision."""
    if not fleet.rollout:
        return LinkDirection("", "no rollout is in progress")
    if fleet.canary:
        return LinkDirection("", "a canary is compared with the other pods")
    if not fleet.readable:
        return LinkDirection("", "Redis cannot be read")
    if not fleet.revision:
        return LinkDirection("", "the revision of the new pods is not known yet")
    new = [pod for pod in fleet.pods if pod.revision == fleet.revision and pod.takes_links and pod.fresh]
    tolerant = tolerant_pods(inputs.links, inputs.capacity, spec.scaling.failure_tolerance)
    enough = min(fleet.replicas, max(spec.replicas.min, tolerant))
    if len(new) < enough:
        return LinkDirection("", f"{len(new)} of {enough} pods of the new revision {fleet.revision} are ready")
    if sum(pod.links for pod in new) >= FILL_AFTER_FAILURE * sum(pod.capacity for pod in new):
        return LinkDirection("", f"the {len(new)} pods of the new revision {fleet.revision} are full")
    if now - history.refusing_at < REFUSAL_MEMORY:
        return LinkDirection("", f"pods of the new revision {fleet.revision} refuse links")
    return LinkDirection(fleet.revision, f"the {len(new)} pods of the new revision {fleet.revision} take all new links")
