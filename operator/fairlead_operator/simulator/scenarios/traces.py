"""The built-in traces: each makes a Scenario of a number of agents and of seconds.

All of them are based on a daily cycle, from TROUGH of the agents at its ends to all of them in its middle. Events occur
at a share of the length, so that a shorter trace has the same shape with steeper slopes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fairlead_operator.simulator.arrays import Counts
from fairlead_operator.simulator.scenarios.scenario import Scenario, Span

TROUGH = 0.4
"""Share of the agents that want a link at night: laptops and shops are closed, servers are not."""
REGION = 0.3
"""Share of the agents that are in the region which is cut off."""
OUTAGE_SECONDS = 1200
RETURN_SECONDS = 60
"""Seconds within which agents that cannot reach the gateway try again (`cap` of the default RetryPolicy)."""
ZONE_SECONDS = 3600
"""For how long a zone is down."""

Trace = Callable[[int, int], Scenario]


def wave(agents: int, seconds: int) -> Counts:
    """The demand of a day."""
    phase = np.linspace(0, 2 * np.pi, seconds + 1)
    return np.rint(agents * (TROUGH + (1 - TROUGH) * (1 - np.cos(phase)) / 2)).astype(np.int64)


def day(agents: int, seconds: int) -> Scenario:
    return Scenario("day", "a day's wave: 40 % of the agents at night, all at noon", wave(agents, seconds))


def region(agents: int, seconds: int) -> Scenario:
    demand = wave(agents, seconds)
    cut = min(seconds // 2, seconds)
    back = min(cut + OUTAGE_SECONDS, seconds)
    present = np.ones(seconds + 1)
    present[cut:back] = 1 - REGION
    returning = np.linspace(1 - REGION, 1.0, RETURN_SECONDS + 1)[: seconds + 1 - back]
    present[back : back + len(returning)] = returning
    return Scenario(
        "region",
        "at the peak 30 % of the agents are cut off for 20 minutes, and return within one",
        np.rint(demand * present).astype(np.int64),
        cut=Span(cut - 1, cut),
    )


def rollout(agents: int, seconds: int) -> Scenario:
    text = "all pods are replaced at the peak"
    return replace(day(agents, seconds), name="rollout", text=text, rollout_at=seconds // 2)


def stuck_pod(agents: int, seconds: int) -> Scenario:
    begin = seconds * 3 // 10
    text = "a pod that is added in the morning does not start for two hours"
    return replace(day(agents, seconds), name="stuck-pod", text=text, stuck=Span(begin, begin + 7200))


def dead_metric(agents: int, seconds: int) -> Scenario:
    begin = seconds // 4
    text = "the numbers cannot be read for an hour of the morning"
    return replace(day(agents, seconds), name="dead-metric", text=text, unreadable=Span(begin, begin + 3600))


def pinning(agents: int, seconds: int) -> Scenario:
    text = "the load balancer sends agents to the pod where they were before"
    return replace(day(agents, seconds), name="pinning", text=text, balancer="pinning")


def zone(agents: int, seconds: int) -> Scenario:
    down = Span(seconds // 2, seconds // 2 + ZONE_SECONDS)
    text = "at the peak one zone of three fails for an hour"
    return replace(day(agents, seconds), name="zone", text=text, zone_down=down)


_TRACES: tuple[Trace, ...] = (day, region, rollout, stuck_pod, dead_metric, pinning, zone)
TRACES: dict[str, Trace] = {trace.__name__.replace("_", "-"): trace for trace in _TRACES}
