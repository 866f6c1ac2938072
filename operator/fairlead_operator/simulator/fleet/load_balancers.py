"""How a load balancer spreads the attempts of agents over the pods. `simulation` asks in every second.

`anywhere` counts agents without a previous pod, `back[i]` those whose last link or attempt was at the i-th pod. Only a
load balancer that pins agents distinguishes the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from fairlead_operator.simulator.arrays import Counts, spread_evenly


class LoadBalancer(ABC):
    name: ClassVar[str]
    text: ClassVar[str]
    pins: ClassVar[bool] = False
    """Whether an agent is sent to its previous pod, as long as that takes links."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    @abstractmethod
    def spread(self, anywhere: int, back: Counts, links: Counts) -> Counts:
        """Attempts that each pod gets; there is at least one pod, and `links` are those of the pods."""


class RandomChoice(LoadBalancer):
    name = "random"
    text = "each attempt goes to any pod, as with kube-proxy"

    def spread(self, anywhere: int, back: Counts, links: Counts) -> Counts:
        return spread_evenly(self._rng, anywhere + int(back.sum()), len(links))


class RoundRobin(LoadBalancer):
    name = "round-robin"
    text = "the pods in turn, as ingress-nginx does"

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._next = 0

    def spread(self, anywhere: int, back: Counts, links: Counts) -> Counts:
        number, pods = anywhere + int(back.sum()), len(links)
        each, rest = divmod(number, pods)
        attempts = np.full(pods, each, np.int64)
        attempts[(self._next + np.arange(rest)) % pods] += 1
        self._next = (self._next + rest) % pods
        return attempts


class LeastConnections(LoadBalancer):
    name = "least-connections"
    text = "the pod with the fewest links, as with leastconn of HAProxy"

    def spread(self, anywhere: int, back: Counts, links: Counts) -> Counts:
        number = anywhere + int(back.sum())
        order = np.argsort(links, kind="stable")
        rising = links[order]
        sums = np.cumsum(rising)
        # The number of attempts that raises the first pods to the level of the next one determines how many pods share
        # them.
        sharing = int(np.searchsorted(rising[1:] * np.arange(1, len(rising)) - sums[:-1], number, side="right")) + 1
        level, rest = divmod(number + int(sums[sharing - 1]), sharing)
        attempts = np.zeros_like(links)
        attempts[order[:sharing]] = level - rising[:sharing]
        attempts[order[:rest]] += 1
        return attempts


class PinningBalancer(LoadBalancer):
    name = "pinning"
    text = "an agent goes where it was before, as with the Service's sessionAffinity: ClientIP"
    pins = True

    def spread(self, anywhere: int, back: Counts, links: Counts) -> Counts:
        return back + spread_evenly(self._rng, anywhere, len(links))


BALANCERS: dict[str, type[LoadBalancer]] = {
    one.name: one for one in (RandomChoice, RoundRobin, LeastConnections, PinningBalancer)
}
