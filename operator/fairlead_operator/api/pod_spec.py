"""What a LinkGateway may ask of its pods beside the gateway's own configuration, in Kubernetes' own words. Pure.

A part of `spec`. What of it an author may use is not decided here but by the operator's `policy`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead_operator.api.field_types import CountOrPercent, Free, Quantity, StringMap

MOST = 100
"""Entries of a list that a rule walks: the API server wants to know what a rule may cost."""


class _Part(Struct, frozen=True, rename="camel"):
    """Camel case outside, as Kubernetes writes it."""


class EnvVar(_Part, frozen=True, kw_only=True):
    """One variable of a container, as a pod has it."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    value: str | None = None
    value_from: Free | None = None


class Resources(_Part, frozen=True, kw_only=True):
    """Requests and limits of the gateway's container."""

    requests: Annotated[dict[str, Quantity], Meta(description="As cpu: 500m, memory: 1Gi.")] = {}
    limits: Annotated[dict[str, Quantity], Meta(description="As memory: 2Gi.")] = {}


class Probe(_Part, frozen=True, kw_only=True):
    """How often and how patiently the kubelet asks. What it asks is the operator's."""

    initial_delay_seconds: Annotated[int, Meta(ge=0, le=3600)] | None = None
    period_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None
    timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None
    failure_threshold: Annotated[int, Meta(ge=1, le=1000)] | None = None


class Probes(_Part, frozen=True, kw_only=True):
    startup: Annotated[Probe | None, Meta(description="Every 2 s, for 60 s.")] = None
    liveness: Annotated[Probe | None, Meta(description="Every 10 s; restarted after three failures.")] = None
    readiness: Annotated[Probe | None, Meta(description="Every 2 s; unready after two failures.")] = None


class RollingUpdate(_Part, frozen=True, kw_only=True):
    """How the Deployment replaces pods, as its `strategy.rollingUpdate`."""

    max_surge: Annotated[CountOrPercent, Meta(description="Pods more than wanted.")] = "25%"
    max_unavailable: Annotated[
        CountOrPercent, Meta(description="Pods less than wanted. 0: a new one is ready before an old one goes.")
    ] = 0
    min_ready_seconds: Annotated[
        int, Meta(ge=0, le=3600, description="How long a new pod must be ready before an old one goes.")
    ] = 5


class Pod(_Part, frozen=True, kw_only=True):
    """What the pods have beside their container's arguments, in Kubernetes' own words."""

    labels: StringMap = {}
    annotations: StringMap = {}
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: list[StringMap] = []
    node_selector: StringMap = {}
    tolerations: list[Free] = []
    affinity: Annotated[Free | None, Meta(description="As a pod has it.")] = None
    topology_spread_constraints: Annotated[
        list[Free] | None, Meta(description="Instead of the even spread over zones and hosts.")
    ] = None
    priority_class_name: str | None = None
    runtime_class_name: str | None = None
    env: Annotated[
        list[EnvVar],
        Meta(max_length=MOST, description="More environment. Names that the operator sets itself are refused."),
    ] = []
    volumes: Annotated[list[Free], Meta(max_length=MOST, description="More volumes of the pods.")] = []
    volume_mounts: Annotated[
        list[Free], Meta(max_length=MOST, description="Where the gateway's container has them.")
    ] = []
    init_containers: Annotated[
        list[Free],
        Meta(max_length=MOST, description="Containers that run before, or beside with restartPolicy Always."),
    ] = []
    containers: Annotated[list[Free], Meta(max_length=MOST, description="More containers, beside the gateway's.")] = []
    lifecycle: Annotated[Free | None, Meta(description="Hooks of the gateway's container. It needs none to drain.")] = (
        None
    )
    probes: Annotated[Probes, Meta(description="Other periods and thresholds than the operator's.")] = Probes()
