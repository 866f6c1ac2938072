"""How the links of a fleet are spread over its pods: whether they are uneven, which pods have too many, and how many
each should keep. Pure.

`rebalance` uses it in every pass. It describes one moment and remembers nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.kube.workload_status import pod_count

END_SHARE = 0.5
"""The share of the threshold at which a rebalance ends. The gap between start and end prevents flapping."""
CHANCE = 3.0
"""Standard deviations of a Poisson distribution that count as even. A load balancer that chooses at random spreads a
mean of n links with a deviation of √n, and moved links would again be spread at random."""
FULL = 0.95
"""The share of the capacity above which a fleet is full: it then refuses links because it lacks pods, not because its
links are uneven."""
TAKER_SHARE = 0.75
"""A pod takes new links if it lacks at least this share of what the emptiest pod lacks."""
FILL_SECONDS = 20.0
"""Seconds in which the pace would move all links that the takers lack. Within a pass and the heartbeats around it (15
s) a taker gets three quarters of that, so none gets more than it lacks."""
LEAST_MOVES = 1.0
"""Moves per second."""
REACTION = 20.0
"""Seconds until pods that leave new links to others take them again: a pass that sees why, a heartbeat, a probe and the
endpoints."""


@dataclass(frozen=True, slots=True)
class LinkSpread:
    """How the links are spread over the pods that can take them."""

    pods: tuple[PodObservation, ...]
    threshold: float
    """How far the fullest pod may be above the mean, as a fraction of the mean."""
    least_difference: int
    reserve: int = 0
    """Links that may connect by themselves within REACTION: the pods that take new links must have room for them."""

    @property
    def links(self) -> int:
        return sum(pod.links for pod in self.pods)

    @property
    def mean(self) -> float:
        return self.links / len(self.pods) if self.pods else 0.0

    @property
    def share(self) -> int:
        """Links of each pod when they are spread evenly."""
        return math.ceil(self.mean)

    @property
    def fullest(self) -> int:
        return max((pod.links for pod in self.pods), default=0)

    @property
    def uneven(self) -> bool:
        """Whether a rebalance should start."""
        least = max(self.least_difference, CHANCE * math.sqrt(self.mean))
        return self.fullest > (1 + self.threshold) * self.mean and self.fullest - self.mean > least

    @property
    def near_mean(self) -> int:
        """Links that a pod may have when a rebalance ends."""
        return max(self.share, math.floor((1 + self.threshold * END_SHARE) * self.mean))

    @property
    def is_full(self) -> bool:
        return self.links >= FULL * sum(pod.capacity for pod in self.pods)

    def donors(self, before: frozenset[str]) -> frozenset[str]:
        """Pods that are well above the mean, and those that have been so and are not down to the mean yet."""
        found = (pod for pod in self.pods if pod.links > (self.share if pod.name in before else self.near_mean))
        return frozenset(pod.name for pod in found)

    def surplus(self, donors: frozenset[str]) -> int:
        """Links that the donors have above the mean."""
        return sum(max(0, pod.links - self.share) for pod in self.pods if pod.name in donors)

    def targets(self, donors: frozenset[str], takers: frozenset[str]) -> dict[str, RebalanceTarget]:
        """The target of each pod. Donors shed links down to the mean; the other pods may have as many as when a
        rebalance ends. Pods that are not `takers` leave new links to others once they have their share.
        """
        return {
            pod.name: RebalanceTarget(
                self.share if pod.name in donors else self.near_mean, None if pod.name in takers else self.share
            )
            for pod in self.pods
        }

    @property
    def takers(self) -> frozenset[str]:
        """Pods that take new links however many they get until the next pass: those that lack much, at least one, and
        as many of the emptiest as it takes to have room for the reserve.

        Pods that take new links now come first, so that there is one at every moment, whichever node reads its target
        first."""
        most = max((self.lack(pod) for pod in self.pods), default=0)
        names, room = set[str](), 0.0
        for pod in sorted(self.pods, key=lambda pod: (not pod.takes_links, pod.links, pod.name)):
            if names and room >= self.reserve and (self.lack(pod) < TAKER_SHARE * most or not pod.takes_links):
                continue
            names.add(pod.name)
            room += max(0.0, FULL * pod.capacity - pod.links)
        return frozenset(names)

    def lack(self, pod: PodObservation) -> int:
        """How many links the pod has fewer than its share."""
        return max(0, self.share - pod.links)

    def move_limit(self, takers: frozenset[str]) -> float:
        """The moves per second at which no taker gets more than its share before the next pass."""
        return max(LEAST_MOVES, sum(self.lack(pod) for pod in self.pods if pod.name in takers) / FILL_SECONDS)

    def __str__(self) -> str:
        return f"the fullest of {pod_count(len(self.pods))} has {self.fullest} links, and the mean is {self.mean:.0f}"


def spread_of(fleet: FleetObservation, spec: LinkGatewaySpec) -> LinkSpread:
    """The spread over the pods that are ready and stay."""
    pods = tuple(pod for pod in fleet.pods if pod.ready and not pod.leaving)
    return LinkSpread(
        pods, spec.rebalance.threshold_percent / 100, spec.rebalance.min_difference, reserve_of(pods, spec)
    )


def reserve_of(pods: Sequence[PodObservation], spec: LinkGatewaySpec) -> int:
    """The links of as many of the fullest pods as may fail, but no more than one pod can accept in time: a node tells
    its agents to spread their first attempts so that one node can accept them.
    """
    fullest = sorted((pod.links for pod in pods), reverse=True)
    return math.ceil(min(sum(fullest[: spec.scaling.failure_tolerance]), spec.accept_rate * REACTION))
