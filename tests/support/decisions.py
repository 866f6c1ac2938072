"""Fleets that have just reported their links, and what is decided of them: for the tests of the decision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypedDict

from fairlead.fleet.reports.traffic import Traffic
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.autoscaler.decision import Decision, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.link_history import LOST_SECONDS
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    accept_rate=100,
    replicas=Replicas(min=2, max=20),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)
PERIOD = 10.0
WINDOW = LOST_SECONDS
WINDOWED = Scaling(window_seconds=600)


class PodFields(TypedDict, total=False):
    """Fields of a PodObservation that tests set one by one."""

    age: float
    crash: str
    leaving: bool
    ready: bool
    ready_for: float
    refused: int
    restarted_by: str
    spare_accept_rate: float
    traffic: Traffic | None


def asks(decision: Decision, rule: str) -> int:
    """Pods that the rule requires."""
    return {one.name: one.replicas for one in decision.rules}[rule]


def fleet(*links: int, replicas: int | None = None, rollout: bool = False, readable: bool = True) -> FleetObservation:
    """Pods that have just reported these links."""
    pods = tuple(PodObservation(f"p{i}", age=1.0, links=n, capacity=1000) for i, n in enumerate(links))
    return FleetObservation(len(links) if replicas is None else replicas, pods, readable, rollout)


def watched(
    observed: FleetObservation, spec: LinkGatewaySpec = SPEC, seconds: float = WINDOW, history: History | None = None
) -> Decision:
    """The decision after the fleet has been as `observed` for `seconds`, without any action."""
    history = history or History()
    begin = history.links.observed_at + PERIOD
    looks = math.ceil(seconds / PERIOD)
    for i in range(looks):
        history = replace(decide(observed, history, spec, begin + i * PERIOD).history, removed_at=history.removed_at)
    return decide(observed, history, spec, begin + looks * PERIOD)
