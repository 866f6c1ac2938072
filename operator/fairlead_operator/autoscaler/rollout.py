"""Which pods take new links during a rollout: `direct_links` decides whether only those of the new revision do. Pure.

A Deployment removes old pods one after the other. An agent that leaves one old pod and connects to another old pod has
to move again. So as soon as the new pods can take all links, the old pods become unready and keep the links that they
have: each agent then moves only once. The reconciler calls `direct_links` in every pass and writes the result to Redis,
where it expires by itself. If the new pods refuse links, the old pods take new links again.

In a rollout in steps (see `rollout_step`) there are only a few new pods for a long time. Those of them that have their
share of the links then also leave new links to the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.moves.move_rate import RECEIVED_SHARE
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.gateway_status import DecisionInputs
from fairlead_operator.autoscaler.link_spread import REACTION, reserve_of
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
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
    """Links that each pod of the revision has refused since its start, as last reported."""
    refusing_at: float = -math.inf
    """When one of these pods last reported a new refusal."""
    directed_since: float | None = None
    """Since when new links are directed to these pods; None while they are not."""

    def observe(self, fleet: FleetObservation, now: float) -> RolloutHistory:
        """The history after this observation; a refusal before a pod's first report counts as well."""
        if not (fleet.rollout or _is_draining(fleet)):
            return RolloutHistory()
        if not fleet.revision or not fleet.readable:
            return self
        before = self if self.revision == fleet.revision else RolloutHistory()
        known = dict(before.refused)
        counts = {pod.name: pod.refused for pod in fleet.fresh_pods if pod.revision == fleet.revision}
        more = any(count > known.get(name, 0) for name, count in counts.items())
        return replace(
            before,
            revision=fleet.revision,
            refused=tuple((known | counts).items()),
            refusing_at=now if more else before.refusing_at,
        )

    def direct(self, direction: LinkDirection, now: float) -> RolloutHistory:
        """The history after `direction` has been decided."""
        if not direction.revision:
            return replace(self, directed_since=None)
        return self if self.directed_since is not None else replace(self, directed_since=now)

    def directed_for(self, now: float) -> float:
        """Seconds."""
        return 0.0 if self.directed_since is None else now - self.directed_since


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """Where new links go. `revision` is the one whose pods take all of them; "" while all ready pods do."""

    revision: str
    reason: str
    targets: Mapping[str, RebalanceTarget] = field(default_factory=dict)
    """Names of the pods of that revision that leave new links to the others once they have their share."""


def direct_links(
    fleet: FleetObservation,
    inputs: DecisionInputs,
    history: RolloutHistory,
    spec: LinkGatewaySpec,
    now: float,
    *,
    paced: bool = False,
) -> LinkDirection:
    """`history` already includes the observation of `fleet`, and `inputs` are the numbers of this pass's decision.
    `paced`: whether the rollout goes in steps.
    """
    if not (fleet.rollout or (paced and _is_draining(fleet))):
        return LinkDirection("", "no rollout is in progress")
    if fleet.canary:
        return LinkDirection("", "a canary is compared with the other pods")
    if not fleet.readable:
        return LinkDirection("", "Redis cannot be read")
    if not fleet.revision:
        return LinkDirection("", "the revision of the new pods is not known yet")
    if now - history.refusing_at < REFUSAL_MEMORY:
        return LinkDirection("", f"pods of the new revision {fleet.revision} refuse links")
    return _direct_to_some(fleet, spec) if paced else _direct_to_all(fleet, inputs, spec)


def _direct_to_all(fleet: FleetObservation, inputs: DecisionInputs, spec: LinkGatewaySpec) -> LinkDirection:
    new = [pod for pod in new_pods(fleet) if pod.takes_links]
    tolerant = tolerant_pods(inputs.links, inputs.capacity, spec.scaling.failure_tolerance)
    enough = min(fleet.replicas, max(spec.replicas.min, tolerant))
    if len(new) < enough:
        return LinkDirection("", f"{len(new)} of {enough} pods of the new revision {fleet.revision} are ready")
    if sum(pod.links for pod in new) >= FILL_AFTER_FAILURE * sum(pod.capacity for pod in new):
        return LinkDirection("", f"the {len(new)} pods of the new revision {fleet.revision} are full")
    return LinkDirection(fleet.revision, f"the {len(new)} pods of the new revision {fleet.revision} take all new links")


def _direct_to_some(fleet: FleetObservation, spec: LinkGatewaySpec) -> LinkDirection:
    """Direct new links to new pods that have less than their share. The emptiest pods take new links without a limit
    until the next pass: those that cannot reach their share by then, and as many as have room for agents that connect
    by themselves, but at least one. Pods that already take new links are preferred, so that there is always one.
    """
    new = sorted(new_pods(fleet), key=lambda pod: (not pod.takes_links, pod.links, pod.name))
    if not new:
        return LinkDirection("", f"no pod of the new revision {fleet.revision} is ready")
    share, reserve = share_of(fleet), reserve_of(new, spec)
    until_next_pass = RECEIVED_SHARE * spec.accept_rate * REACTION
    takers, room = set[str](), 0.0
    for pod in new:
        if not takers or room < reserve or share - pod.links >= until_next_pass:
            takers.add(pod.name)
            room += max(0.0, FILL_AFTER_FAILURE * pod.capacity - pod.links)
    if room < reserve or not room:
        return LinkDirection("", f"the {len(new)} pods of the new revision {fleet.revision} are full")
    return LinkDirection(
        fleet.revision,
        f"{len(takers)} of the {len(new)} pods of the new revision {fleet.revision} take all new links",
        {pod.name: RebalanceTarget(pod.capacity, share) for pod in new if pod.name not in takers},
    )


def new_pods(fleet: FleetObservation) -> list[PodObservation]:
    """The pods of the new revision that serve."""
    return [pod for pod in fleet.pods if pod.revision == fleet.revision and pod.ready and not pod.leaving and pod.fresh]


def _is_draining(fleet: FleetObservation) -> bool:
    """Whether the last old pods of a rollout still move their links."""
    return any(pod.leaving and pod.links and fleet.revision not in ("", pod.revision) for pod in fleet.fresh_pods)


def all_links(fleet: FleetObservation) -> int:
    return sum(pod.links for pod in fleet.fresh_pods)


def share_of(fleet: FleetObservation) -> int:
    """Links of each pod when the rollout is over, at least one."""
    return max(1, math.ceil(all_links(fleet) / max(1, fleet.replicas)))
