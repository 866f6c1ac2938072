"""The interface of an autoscaler in the simulator: every `period` seconds it observes the fleet and orders a number of
pods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead_operator.autoscaler.rollout_step import NOT_PACED, RolloutStep
from fairlead_operator.simulator.fleet.directives import NO_DIRECTIVES, Directives
from fairlead_operator.simulator.fleet.pod_table import NEVER, PodTable


@dataclass(frozen=True, slots=True)
class FleetView:
    """What an autoscaler may know at one moment: pods as the cluster shows them, and links as the nodes have reported
    them.
    """

    pods: PodTable
    replicas: int
    readable: bool
    """Whether the nodes' reports can be read."""
    rolling_out: bool
    revision: int
    """That of the Deployment's template."""
    now: int

    @property
    def reported_links(self) -> int:
        """Links of all pods that do not leave."""
        return int(self.pods.reported_links[self.pods.staying].sum())

    @property
    def silent(self) -> int:
        """Pods that do not leave and have not reported yet."""
        return int(np.count_nonzero(self.pods.staying & (self.pods.reported_at == NEVER)))


@dataclass(frozen=True, slots=True)
class ScaleOrder:
    replicas: int
    victims: tuple[str, ...] = ()
    """The pods to remove first. If it is empty, any pods may be removed."""
    directives: Directives = NO_DIRECTIVES
    step: RolloutStep = NOT_PACED
    """How far a rollout goes, if one is in progress or begins."""


class ScalingPolicy(ABC):
    name: ClassVar[str]
    text: ClassVar[str]
    period: ClassVar[int]
    """Seconds between two decisions."""
    drains: ClassVar[bool] = False
    """Whether a pod that leaves moves its agents at a pace. Otherwise it closes all links at once, as an ordinary
    WebSocket server does when it is stopped."""

    @abstractmethod
    def order(self, view: FleetView) -> ScaleOrder:
        """The number of pods from now on."""
