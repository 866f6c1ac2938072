"""Everything on which a scaling decision may depend. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.gateway_status import DecisionInputs
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation

LEAD_MARGIN = 10.0
"""Seconds in addition to the measured start of a pod: one pass until the need is noticed, and one until the pod
counts."""
LEAD_MOST = 300.0
"""The maximum lead time in seconds: a pod that waited an hour for a machine does not tell how far to look ahead."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A fleet as it is observed now, the numbers derived from it, what is remembered about it, and its spec."""

    fleet: FleetObservation
    inputs: DecisionInputs
    history: History
    spec: LinkGatewaySpec
    now: float
    """Any clock in seconds that only goes forward."""


def take_snapshot(fleet: FleetObservation, history: History, spec: LinkGatewaySpec, now: float) -> Snapshot:
    """`history` is the one after the observation of `fleet`."""
    reported = [pod.capacity for pod in fleet.fresh_pods if pod.capacity > 0]
    staying = [pod for pod in fleet.pods if not pod.leaving]
    links, start = history.links, history.starts.duration
    lead = spec.scaling.lead_seconds if start is None else min(LEAD_MOST, start + LEAD_MARGIN)
    inputs = DecisionInputs(
        links=links.links,
        live=links.live,
        away=max(0, links.links - links.live),
        growth=links.growth,
        growing_seconds=links.growing_seconds,
        rejects=links.rejects,
        lead_seconds=lead,
        expected=0 if fleet.at is None else history.week.expected(fleet.at, lead),
        capacity=min([spec.capacity, *reported]),
        pods=len(fleet.pods),
        ready=sum(pod.ready for pod in staying),
        fresh=sum(pod.fresh for pod in staying),
        stale=sum(pod.stale for pod in staying),
        pending=sum(not pod.ready for pod in staying),
        leaving=len(fleet.pods) - len(staying),
        excluded=sum(pod.excluded_by != "" for pod in staying),
    )
    return Snapshot(fleet, inputs, history, spec, now)
