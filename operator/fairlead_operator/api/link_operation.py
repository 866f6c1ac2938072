"""What a LinkOperation asks for and what it tells: the one source of its CRD, and of what the operator reads.

`crd` prints the schema made of these Structs, `read_operation` makes one of a resource, `conductor` carries it out. A
request is never changed: what was asked, by whom and when must still be true when somebody asks what happened. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead_operator.api.field_types import Name
from fairlead_operator.api.gateway_status import Condition
from fairlead_operator.api.validation import Rule
from fairlead_operator.kube.objects import Object

KIND = "LinkOperation"
PLURAL = "linkoperations"

TIME = {"format": "date-time"}
PodName = Annotated[str, Meta(max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


class Type(StrEnum):
    DRAIN = "Drain"
    """One pod sends its agents elsewhere and goes; the Deployment makes another."""
    RESTART = "Restart"
    """All pods, one after another, as by `kubectl rollout restart`."""


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


ENDED = (Phase.SUCCEEDED, Phase.FAILED)


class _Part(Struct, frozen=True, rename="camel"):
    pass


class GatewayRef(_Part, frozen=True, kw_only=True):
    """A LinkGateway of the same namespace."""

    name: Name


class LinkOperationSpec(_Part, frozen=True, kw_only=True):
    """One request to one fleet. It cannot be changed; deleting it stops nothing that has begun."""

    gateway: GatewayRef
    type: Annotated[
        Type, Meta(description="Drain: empty and replace one pod. Restart: replace all pods, as a rollout does.")
    ]
    pod: Annotated[PodName | None, Meta(description="Of a Drain: the pod that goes.")] = None
    reason: Annotated[str, Meta(max_length=500, description="Why, for whoever reads it later.")] = ""
    active_deadline_seconds: Annotated[
        int, Meta(ge=30, le=86_400, description="Failed when it is not complete so long after its start.")
    ] = 3600


class LinkOperationStatus(_Part, frozen=True, kw_only=True):
    observed_generation: int = 0
    phase: Phase | None = None
    message: Annotated[str, Meta(description="What goes on, or what became of it.")] = ""
    pod_uid: Annotated[str, Meta(description="Of a Drain: the pod that was meant, whatever bears its name later.")] = ""
    ready_wanted: Annotated[int, Meta(description="Pods that must be ready besides those that go.")] = 0
    links_at_start: Annotated[int | None, Meta(description="Of the pods that go, when it began.")] = None
    links_left: Annotated[int | None, Meta(description="Of the pods that go.")] = None
    started_at: Annotated[str | None, Meta(extra_json_schema=TIME)] = None
    finished_at: Annotated[str | None, Meta(extra_json_schema=TIME)] = None
    conditions: list[Condition] = []


RULES: Mapping[type[_Part], tuple[Rule, ...]] = {
    LinkOperationSpec: (
        Rule("self == oldSelf", "a LinkOperation cannot be changed: create another one"),
        Rule("(self.type == 'Drain') == has(self.pod)", "a Drain names its pod, and nothing else names one"),
    ),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One LinkOperation as it was read."""

    name: str
    uid: str
    spec: LinkOperationSpec
    status: LinkOperationStatus


def status_of(body: Object) -> LinkOperationStatus:
    """What stands there; nothing when another version wrote it in a way that is not understood."""
    try:
        return msgspec.convert(body.get("status") or {}, LinkOperationStatus)
    except msgspec.ValidationError:
        return LinkOperationStatus()


def read_operation(body: Object) -> Operation:
    """Raises ConfigError with what is wrong: a resource may be older, or newer, than the CRD."""
    try:
        spec = msgspec.convert(body["spec"], LinkOperationSpec)
    except msgspec.ValidationError as e:
        raise ConfigError(f"the spec cannot be read: {e}") from e
    if (spec.type is Type.DRAIN) != (spec.pod is not None):
        raise ConfigError(RULES[LinkOperationSpec][1].message)
    return Operation(body["metadata"]["name"], body["metadata"]["uid"], spec, status_of(body))
