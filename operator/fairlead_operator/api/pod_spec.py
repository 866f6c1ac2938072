"""What a LinkGateway may ask for of its pods besides the gateway's own configuration, in Kubernetes' own terms. Pure.

A part of `gateway_spec`. The operator's `policy`, not this module, decides which fields an author may use.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from fairlead_operator.api.field_types import ApiStruct, CountOrPercent, Free, Quantity, StringMap

MOST_ENTRIES = 100
"""The longest list that a CEL rule walks: the API server must be able to estimate the cost of the rule."""


class EnvVar(ApiStruct, frozen=True, kw_only=True):
    """An environment variable of a container."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    value: str | None = None
    value_from: Free | None = None


class Resources(ApiStruct, frozen=True, kw_only=True):
    """Requests and limits of the gateway's container."""

    requests: Annotated[dict[str, Quantity], Meta(description="Such as cpu: 500m, memory: 1Gi.")] = {}
    limits: Annotated[dict[str, Quantity], Meta(description="Such as memory: 2Gi.")] = {}


class Probe(ApiStruct, frozen=True, kw_only=True):
    """Periods and thresholds of a probe. The operator sets what it requests."""

    initial_delay_seconds: Annotated[int, Meta(ge=0, le=3600)] | None = None
    period_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None
    timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None
    failure_threshold: Annotated[int, Meta(ge=1, le=1000)] | None = None


class Probes(ApiStruct, frozen=True, kw_only=True):
    startup: Annotated[Probe | None, Meta(description="Default: every 2 s, for 60 s.")] = None
    liveness: Annotated[
        Probe | None, Meta(description="Default: every 10 s; the container restarts after three failures.")
    ] = None
    readiness: Annotated[
        Probe | None, Meta(description="Default: every 2 s; the pod is unready after two failures.")
    ] = None


class RollingUpdate(ApiStruct, frozen=True, kw_only=True):
    """How the Deployment replaces pods: its `strategy.rollingUpdate`."""

    max_surge: Annotated[
        CountOrPercent,
        Meta(description="Pods above the wanted number. With less than 100%, some agents move more than once."),
    ] = "100%"
    max_unavailable: Annotated[
        CountOrPercent,
        Meta(description="Pods below the wanted number. 0: a new pod is ready before an old one terminates."),
    ] = 0
    min_ready_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=3600,
            description="How long a new pod must be ready before an old one terminates. Within this time the operator "
            "directs all new links to the new pods, which takes up to 22 s.",
        ),
    ] = 30


class Pod(ApiStruct, frozen=True, kw_only=True):
    """What the pods have besides the gateway's own configuration, in Kubernetes' own terms."""

    labels: StringMap = {}
    annotations: StringMap = {}
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: list[StringMap] = []
    node_selector: StringMap = {}
    tolerations: list[Free] = []
    affinity: Annotated[Free | None, Meta(description="As in a pod.")] = None
    topology_spread_constraints: Annotated[
        list[Free] | None, Meta(description="Default: an even spread over zones and hosts.")
    ] = None
    priority_class_name: str | None = None
    runtime_class_name: str | None = None
    env: Annotated[
        list[EnvVar],
        Meta(
            max_length=MOST_ENTRIES,
            description="Further environment variables. Those that the operator sets itself are refused.",
        ),
    ] = []
    volumes: Annotated[list[Free], Meta(max_length=MOST_ENTRIES, description="Further volumes of the pods.")] = []
    volume_mounts: Annotated[
        list[Free], Meta(max_length=MOST_ENTRIES, description="Further volume mounts of the gateway's container.")
    ] = []
    init_containers: Annotated[
        list[Free],
        Meta(max_length=MOST_ENTRIES, description="Init containers; with restartPolicy Always they are sidecars."),
    ] = []
    containers: Annotated[
        list[Free], Meta(max_length=MOST_ENTRIES, description="Further containers besides the gateway's.")
    ] = []
    lifecycle: Annotated[
        Free | None, Meta(description="Lifecycle hooks of the gateway's container, which needs none to drain.")
    ] = None
    probes: Annotated[Probes, Meta(description="Periods and thresholds that replace the operator's.")] = Probes()


def mounted_at(mount: Mapping[str, Any]) -> str:
    """The path of a volume mount in the end: it begins at / in any case, and has no `.`, `..` and empty names."""
    return posixpath.normpath("/" + str(mount.get("mountPath", "")).lstrip("/"))


def lies_in(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
