"""What happens to a modelled fleet: how many agents want a link in each second, and what goes wrong meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fairlead_operator.simulator.arrays import Counts


class Span(NamedTuple):
    """Seconds from `begin` until before `end`."""

    begin: int
    end: int

    def holds(self, second: int) -> bool:
        return self.begin <= second < self.end


NOWHERE = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    text: str
    """One sentence for the list of traces."""
    demand: Counts
    """Agents that want a link, at the beginning of each second and at the end of the last one."""
    balancer: str = ""
    """Name of the load balancer that this trace requires; "" for any."""
    rollout_at: int | None = None
    """Second at which all pods get a new template."""
    stuck: Span = NOWHERE
    """The first pod that is created in this span is not ready before its end."""
    unreadable: Span = NOWHERE
    """Neither Redis nor a metrics server answers the autoscaler."""
    cut: Span = NOWHERE
    """In this span, agents that go cannot reach the gateway, so unlike agents that are stopped they do not say
    goodbye."""
    zone_down: Span = NOWHERE
    """One zone has failed: its pods die at the beginning, and none is placed there before the end."""

    @property
    def seconds(self) -> int:
        return len(self.demand) - 1

    @property
    def agents(self) -> int:
        """The number of all agents: the greatest demand."""
        return int(self.demand.max())
