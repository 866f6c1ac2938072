"""The status of a LinkGateway, and the last decision in it. Pure.

`runtime.reports` fills these Structs, `crd` prints their schema, and a new leader reads them back. The status contains
every number on which a decision was based, so that `kubectl describe` shows the reason.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead_operator.api.field_types import ApiStruct, Timestamp
from fairlead_operator.kube.objects import Object


class Condition(ApiStruct, frozen=True, kw_only=True):
    """One condition, as Kubernetes' API conventions have it."""

    type: str
    status: str
    reason: str
    message: str = ""
    last_transition_time: Timestamp
    observed_generation: int = 0


class RuleStatus(ApiStruct, frozen=True, kw_only=True):
    """How many pods one scaling rule asks for."""

    name: str
    replicas: Annotated[int, Meta(description="Pods that the rule asks for.")]
    reason: str


class ComparedAutoscaler(ApiStruct, frozen=True, kw_only=True):
    """What another autoscaler would do on the same reports."""

    name: Annotated[str, Meta(description="hpa or keda.")]
    replicas: Annotated[int, Meta(description="Pods that it would set.")]
    reason: str = ""


class ReplicaBounds(ApiStruct, frozen=True, kw_only=True):
    """The bounds of `spec.replicas` when the decision was made."""

    min: int = 0
    max: int = 0


class DecisionInputs(ApiStruct, frozen=True, kw_only=True):
    """The numbers on which the decision was based. `status` shows the rates and the lead time rounded."""

    links: Annotated[
        int,
        Meta(description="Links that count: live ones, and those lost in the last two minutes that are not back yet."),
    ] = 0
    live: Annotated[
        int, Meta(description="Links in the pods' last reports, with the last known ones of pods that fell silent.")
    ] = 0
    away: Annotated[int, Meta(description="Links lost in the last two minutes that are not back yet.")] = 0
    growth: Annotated[float, Meta(description="New links per second, smoothed.")] = 0.0
    growing_seconds: Annotated[float, Meta(description="For how long the links have been growing.")] = 0.0
    rejects: Annotated[float, Meta(description="Refused links per second, smoothed.")] = 0.0
    lead_seconds: Annotated[
        float, Meta(description="Time from the decision to add a pod to its first link, as measured.")
    ] = 0.0
    expected: Annotated[
        int, Meta(description="Links that the last weeks had until a new pod would be ready; 0 without weekProfile.")
    ] = 0
    capacity: Annotated[int, Meta(description="Links that each pod takes.")] = 0
    pods: Annotated[int, Meta(description="Pods that exist.")] = 0
    ready: Annotated[int, Meta(description="Pods that are ready and not terminating.")] = 0
    fresh: Annotated[int, Meta(description="Pods that reported within the last 15 s.")] = 0
    stale: Annotated[int, Meta(description="Ready pods that have not reported for more than 15 s.")] = 0
    pending: Annotated[int, Meta(description="Pods that are not ready yet.")] = 0
    leaving: Annotated[int, Meta(description="Pods that are terminating.")] = 0
    excluded: Annotated[
        int, Meta(description="Ready pods that leave new links to others, so that Kubernetes calls them unready.")
    ] = 0


class RemovalStatus(ApiStruct, frozen=True, kw_only=True):
    """What keeps the next pod from being removed."""

    held_by: Annotated[str, Meta(description="The rule or the obstacle; empty while a pod is removed.")] = ""
    reason: str = ""
    until: Annotated[Timestamp, Meta(description="When it ends by itself; absent when that is not known.")] | None = (
        None
    )


class DecisionReport(ApiStruct, frozen=True, kw_only=True):
    """The last decision."""

    at: Timestamp
    action: Annotated[str, Meta(description="Up, Down, Stay or Hold.")]
    replicas: Annotated[int, Meta(description="Pods that there should be.")]
    winner: Annotated[
        str, Meta(description="The rule that asked for the most pods, or what overrode it: min, max or external.")
    ]
    reason: str
    limited: Annotated[bool, Meta(description="Whether replicas.max or the limit of a step reduced it.")] = False
    rules: Annotated[list[RuleStatus], Meta(description="What each scaling rule asks for.")] = []
    removal: RemovalStatus = RemovalStatus()
    comparison: Annotated[
        list[ComparedAutoscaler], Meta(description="Mode DryRun: what other autoscalers would do on the same reports.")
    ] = []
    bounds: ReplicaBounds = ReplicaBounds()
    inputs: DecisionInputs = DecisionInputs()


class RebalanceReport(ApiStruct, frozen=True, kw_only=True):
    """The rebalance: links that move from full pods to others."""

    state: Annotated[str, Meta(description="Even, Waiting, Running or Stopped.")]
    reason: Annotated[str, Meta(description="Why links are moved, or why not.")] = ""
    to_move: Annotated[int, Meta(description="Links that are still to be moved.")] = 0
    moved: Annotated[int, Meta(description="Links that the running rebalance, or else the last one, has moved.")] = 0
    started_at: Timestamp | None = None


class CanaryMeasurement(ApiStruct, frozen=True, kw_only=True):
    """One comparison of the canary with the pods of the accepted template."""

    name: Annotated[str, Meta(description="LinksRejected, LinksLost, CommandsFailed or CommandsSlow.")]
    count: Annotated[int, Meta(description="What happened on the canary.")] = 0
    limit: Annotated[int, Meta(description="The most that the other pods' share explains.")] = 0
    judged: Annotated[bool, Meta(description="False while too few links or commands were seen.")] = False
    message: str = ""


class CanaryReport(ApiStruct, frozen=True, kw_only=True):
    """The canary of a pod template: the one that runs, or the last one."""

    state: Annotated[str, Meta(description="Running, Promoting, Succeeded or Failed.")]
    template: Annotated[str, Meta(description="Hash of the pod template. One that has failed is not tried again.")]
    reason: Annotated[str, Meta(description="The measurement that failed, or how it ended otherwise.")] = ""
    message: str = ""
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    pods: Annotated[int, Meta(description="Pods of the canary that are ready and have reported.")] = 0
    links: Annotated[int, Meta(description="Links that they hold.")] = 0
    watched_seconds: Annotated[int, Meta(description="For how long they have been compared.")] = 0
    measurements: list[CanaryMeasurement] = []


class LinkGatewayStatus(ApiStruct, frozen=True, kw_only=True):
    """What the operator reports of one LinkGateway."""

    observed_generation: int = 0
    phase: str = ""
    selector: Annotated[str, Meta(description="Label selector of the gateway's pods, for /scale.")] = ""
    replicas: Annotated[int, Meta(description="Pods that the Deployment asks for.")] = 0
    ready_replicas: Annotated[int, Meta(description="Pods that take links.")] = 0
    desired_replicas: Annotated[int, Meta(description="Pods that the last decision asks for.")] = 0
    links: Annotated[int, Meta(description="Links of agents.")] = 0
    utilisation_percent: Annotated[int, Meta(description="Links against the capacity of the ready pods.")] = 0
    skew: Annotated[str, Meta(description="Links of the fullest pod, divided by the mean.")] = ""
    move_rate: Annotated[
        float | None, Meta(description="Agents that may move per second now; null while Redis cannot be read.")
    ] = None
    last_scale_time: Timestamp | None = None
    decision: DecisionReport | None = None
    rebalance: RebalanceReport | None = None
    canary: CanaryReport | None = None
    conditions: list[Condition] = []


def read_gateway_status(body: Object) -> LinkGatewayStatus:
    """The status of a resource; an empty one when another version wrote it in a way that cannot be read."""
    try:
        return msgspec.convert(body.get("status") or {}, LinkGatewayStatus)
    except msgspec.ValidationError:
        return LinkGatewayStatus()
