"""The stage of a new pod template: `next_stage` says which template the Deployment gets in a pass, and `is_promoted`
when its old pods may terminate. Pure.

A template is accepted when its canary has succeeded, or when no canary is asked for. Everything that is remembered is
in the status and in the accepted template, so that a new leader continues.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

from fairlead_operator.api.gateway_spec import Canary, LinkGatewaySpec
from fairlead_operator.api.gateway_status import CanaryReport
from fairlead_operator.autoscaler.canary.canary_analysis import START_TIMEOUT, CanaryState, canary_size
from fairlead_operator.autoscaler.observation import FleetObservation


class RolloutStage(StrEnum):
    NORMAL = "Normal"
    """The spec's template is accepted, and the Deployment replaces pods as `rollingUpdate` says."""
    CANARY = "Canary"
    """The Deployment has the new template, but creates only the pods of the canary."""
    PROMOTION = "Promotion"
    """The new template is accepted, and the Deployment creates all its pods; no old pod may terminate yet."""
    WITHHELD = "Withheld"
    """The canary of the new template has failed, so the Deployment keeps the accepted template."""


def next_stage(template: str, accepted: str, before: CanaryReport | None, canary: Canary | None) -> RolloutStage:
    """`template` and `accepted` are hashes, `accepted` is "" while none is known; `before` is what the status says."""
    state = before.state if before is not None and before.template == template else ""
    if canary is None or not accepted:
        return RolloutStage.NORMAL
    if template == accepted:
        return RolloutStage.PROMOTION if state == CanaryState.PROMOTING else RolloutStage.NORMAL
    return RolloutStage.WITHHELD if state == CanaryState.FAILED else RolloutStage.CANARY


def is_promoted(fleet: FleetObservation, spec: LinkGatewaySpec, seconds: float) -> bool:
    """Whether the Deployment may terminate old pods, `seconds` after the canary has succeeded.

    The pods of the canary have long been ready. If that were enough, old pods would terminate at once, and their agents
    would connect to other old pods and move twice. So all new pods must first have been ready for `minReadySeconds`, or
    have had enough time for it.
    """
    surge = _count(spec.rolling_update.max_surge, fleet.replicas)
    canary = canary_size(fleet.replicas, spec) if spec.rollout.canary else 0
    new = (pod for pod in fleet.pods if pod.revision == fleet.revision and pod.ready and not pod.leaving)
    available = sum(pod.ready_for >= spec.rolling_update.min_ready_seconds for pod in new)
    return available >= min(fleet.replicas, max(canary, surge)) or seconds >= START_TIMEOUT


def _count(value: Any, replicas: int) -> int:
    """A number of pods or a percentage of `replicas`, rounded up as Kubernetes rounds maxSurge."""
    text = str(value)
    return math.ceil(replicas * int(text[:-1]) / 100) if text.endswith("%") else int(text)
