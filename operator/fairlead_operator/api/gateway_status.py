"""What a LinkGateway tells of itself: the Structs of its status, and of one decision in it.

Filled by `status`, read back at a start (what was decided before must outlive the operator's pod), and printed into
the CRD by `crd`. Every number that a decision was made of stands here, so that `kubectl describe` answers *why*.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fairlead_operator.kube.objects import Object


class _Part(Struct, frozen=True, rename="camel"):
    pass


class Condition(_Part, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str
    message: str = ""
    last_transition_time: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    observed_generation: int = 0


class Bounds(_Part, frozen=True, kw_only=True):
    """Pods that each rule asks for."""

    load: Annotated[int, Meta(description="Links, and their growth, at the target utilisation.")] = 0
    survive: Annotated[int, Meta(description="Links at 95 %, and the pods that may die.")] = 0
    herd: Annotated[int, Meta(description="The whole fleet comes back within herdSeconds.")] = 0
    min: int = 0
    max: int = 0


class Inputs(_Part, frozen=True, kw_only=True):
    """What the decision was made of."""

    links: Annotated[int, Meta(description="Links that count: live, last known of stale pods, and on their way.")] = 0
    live: int = 0
    away: Annotated[int, Meta(description="Links lost in the last two minutes that are not back.")] = 0
    growth: Annotated[str, Meta(description="Links a second, smoothed.")] = "0"
    rejects: Annotated[str, Meta(description="Refused links a second.")] = "0"
    lead_seconds: Annotated[int, Meta(description="From the wish for a pod to its first link, as measured.")] = 0
    capacity: int = 0
    pods: int = 0
    ready: int = 0
    fresh: int = 0
    stale: int = 0
    pending: int = 0


class DecisionReport(_Part, frozen=True, kw_only=True):
    at: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    action: Annotated[str, Meta(description="Up, Down, Stay or Hold.")]
    replicas: int
    winner: Annotated[str, Meta(description="The rule that asked for the most.")]
    reason: str
    limited: Annotated[bool, Meta(description="Whether replicas.max or a step limit cut it.")] = False
    bounds: Bounds = Bounds()
    inputs: Inputs = Inputs()


class LinkGatewayStatus(_Part, frozen=True, kw_only=True):
    observed_generation: int = 0
    phase: str = ""
    selector: Annotated[str, Meta(description="Of the gateway's pods, for /scale.")] = ""
    replicas: int = 0
    ready_replicas: int = 0
    desired_replicas: int = 0
    links: int = 0
    utilisation_percent: int = 0
    skew: Annotated[str, Meta(description="The fullest pod against the mean.")] = ""
    last_scale_time: Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})] = None
    decision: DecisionReport | None = None
    conditions: list[Condition] = []


def read_status(body: Object) -> LinkGatewayStatus:
    """What stands there; nothing when another version wrote it in a way that is not understood."""
    try:
        return msgspec.convert(body.get("status") or {}, LinkGatewayStatus)
    except msgspec.ValidationError:
        return LinkGatewayStatus()
