"""What an autoscaler is to the simulator: every `period` seconds it looks at the fleet and orders a number of pods."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead_operator.simulator.fleet.pod_table import NEVER, PodTable


@dataclass(frozen=True, slots=True)
class FleetView:
    """What an autoscaler may know at one moment: pods as the cluster shows them, links as nodes have reported them."""

    pods: PodTable
    replicas: int
    readable: bool
    """Whether the nodes' reports can be read."""
    rolling_out: bool
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
    victim: str = ""
    """The pod that goes first, "" for any."""
    targets: Mapping[str, RebalanceTarget] = field(default_factory=dict)
    """What a rebalance asks of each pod's node; empty while none runs."""
    move_limit: float = math.inf
    """Moves per second that the rebalance allows."""


class ScalingPolicy(ABC):
    name: ClassVar[str]
    text: ClassVar[str]
    period: ClassVar[int]
    """Seconds between two decisions."""
    drains: ClassVar[bool] = False
    """Whether a pod that leaves moves its agents at a pace. Otherwise it closes all links at once, as any WebSocket
    server does that is told to stop."""

    @abstractmethod
    def order(self, view: FleetView) -> ScaleOrder:
        """The number of pods from now on."""
