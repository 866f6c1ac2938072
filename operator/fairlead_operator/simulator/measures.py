"""What is counted in a run: totals over all seconds, and a sample of the fleet each minute for the plots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fairlead_operator.simulator.arrays import Counts

HOT = 0.95
"""Share of its capacity above which a pod is hot: it cannot take the agents of a neighbour that fails."""
SAMPLE_SECONDS = 60
PERCENTILE = 0.99


class Sample(NamedTuple):
    """A minute of the fleet."""

    second: int
    """The number at the end of the minute, like the three that follow."""
    demand: int
    links: int
    pods: int
    waiting: int
    """The greatest number in any second of the minute, like the three that follow."""
    greatest_share: float
    """Links of the fullest pod, as a share of its capacity."""
    closes: int
    refused: int


@dataclass(slots=True)
class PolicyCost:
    """CPU time of the policy's decisions."""

    decisions: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    most_pods: int = 0

    def add(self, seconds: float, pods: int) -> None:
        self.decisions += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.most_pods = max(self.most_pods, pods)


@dataclass(slots=True)
class Measures:
    capacity: int
    seconds: int = 0
    pod_seconds: int = 0
    """Seconds of all pods, including those that start and those that leave, because all of them cost money."""
    most_pods: int = 0
    agent_seconds: int = 0
    """Seconds for which agents wanted a link."""
    unlinked_seconds: int = 0
    """The part of `agent_seconds` in which the agents had no link."""
    closes: int = 0
    """Links that were moved or closed because of a scale-down, a rollout or a rebalance."""
    greatest_closes: int = 0
    """In one second."""
    lost: int = 0
    """Links that ended by themselves or with a pod that died."""
    hot_seconds: int = 0
    greatest_share: float = 0.0
    refused: int = 0
    samples: list[Sample] = field(default_factory=list)
    _minute: tuple[int, float, int, int] = (0, 0.0, 0, 0)
    """The greatest numbers of waiting agents, share, closed links and refusals since the last sample."""

    def tick(self, second: int, demand: int, links: Counts, waiting: int, closes: int, refused: int) -> None:
        """Count one second."""
        pods = len(links)
        share = int(links.max()) / self.capacity if pods else 0.0
        self.seconds += 1
        self.pod_seconds += pods
        self.most_pods = max(self.most_pods, pods)
        self.agent_seconds += demand
        self.unlinked_seconds += waiting
        self.closes += closes
        self.greatest_closes = max(self.greatest_closes, closes)
        self.hot_seconds += share > HOT
        self.greatest_share = max(self.greatest_share, share)
        self.refused += refused
        most = self._minute
        self._minute = max(most[0], waiting), max(most[1], share), max(most[2], closes), max(most[3], refused)
        if second % SAMPLE_SECONDS == 0:
            self.samples.append(Sample(second, demand, int(links.sum()), pods, *self._minute))
            self._minute = (0, 0.0, 0, 0)


def percentile(histogram: Counts, share: float = PERCENTILE) -> int:
    """The value that a `share` of the counted values do not exceed; 0 if nothing was counted."""
    sums = np.cumsum(histogram)
    return int(np.searchsorted(sums, share * int(sums[-1]))) if sums[-1] else 0
