"""LinkOperation: what it asks for and what it reports. The only source of its CRD. Pure.

`crd` prints the schema of these Structs, `read_operation` reads a resource into them, and `operations` carries it out.
A request never changes, except that it may be cancelled, so that it remains a true record of who asked for what and
when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.errors import ConfigError, InvalidRequest
from fairlead.fleet import selector
from fairlead_operator.api.field_types import ApiStruct, Name, Timestamp
from fairlead_operator.api.gateway_spec import GROUP
from fairlead_operator.api.gateway_status import Condition
from fairlead_operator.api.validation import ValidationRule
from fairlead_operator.kube.objects import Object

KIND = "LinkOperation"
PLURAL = "linkoperations"
RESTART_ANNOTATION = f"{GROUP}/restart"
"""Annotation of the pod template, and through it of its pods: the uid of the Restart that created them."""

PodName = Annotated[str, Meta(max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


class Type(StrEnum):
    DRAIN = "Drain"
    """One pod sends its agents to other pods and terminates; the Deployment creates another."""
    RESTART = "Restart"
    """All pods are replaced, a few at a time, as by `kubectl rollout restart`."""
    REBALANCE = "Rebalance"
    """Links are moved from full pods to others now, whatever the thresholds of `spec.rebalance`."""
    DISCONNECT = "Disconnect"
    """The links of some agents are closed; the agents connect again."""


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


ENDED = (Phase.SUCCEEDED, Phase.FAILED)


class GatewayName(ApiStruct, frozen=True, kw_only=True):
    """A LinkGateway of the same namespace."""

    name: Name


class DisconnectSpec(ApiStruct, frozen=True, kw_only=True):
    """Type Disconnect: whose links are closed, and how fast."""

    selector: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=selector.LENGTH_LIMIT,
                description="Agents by labels and facts, as the API's lists take it: 'env in (prod,dev),os=linux'.",
            ),
        ]
        | None
    ) = None
    agents: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=256)]],
            Meta(min_length=1, max_length=1000, description="Agents by id, instead of a selector."),
        ]
        | None
    ) = None
    rate_per_second: Annotated[
        int, Meta(ge=1, le=1000, description="Links closed per second at most, by all pods together.")
    ] = 50
    retry_after_seconds: (
        Annotated[
            int,
            Meta(ge=0, le=30, description="When an agent connects again. Default: by its usual policy of reconnects."),
        ]
        | None
    ) = None


class LinkOperationSpec(ApiStruct, frozen=True, kw_only=True):
    """One request to one fleet. It cannot be changed, except that it may be cancelled."""

    gateway: GatewayName
    type: Annotated[
        Type,
        Meta(
            description="Drain: empty and replace one pod. Restart: replace all pods, as a rollout does. Rebalance: "
            "move links from full pods to others now. Disconnect: close the links of some agents."
        ),
    ]
    pod: Annotated[PodName | None, Meta(description="Type Drain: the pod to replace.")] = None
    disconnect: DisconnectSpec | None = None
    reason: Annotated[str, Meta(max_length=500, description="Why, for those who read it later.")] = ""
    active_deadline_seconds: Annotated[
        int,
        Meta(ge=30, le=86_400, description="It fails when it is not complete this long after its start."),
    ] = 3600
    cancel: Annotated[
        bool,
        Meta(
            description="Ends it: one that waits does not begin, and one that runs does nothing more. Cannot be undone."
        ),
    ] = False
    ttl_seconds_after_finished: (
        Annotated[
            int, Meta(ge=0, le=365 * 86_400, description="It is deleted this long after its end. Without it: never.")
        ]
        | None
    ) = None


class LinkOperationStatus(ApiStruct, frozen=True, kw_only=True):
    """What the operator reports of one LinkOperation."""

    observed_generation: int = 0
    phase: Phase | None = None
    message: Annotated[str, Meta(description="What is happening, or how it ended.")] = ""
    pod_uid: Annotated[str, Meta(description="Type Drain: uid of the pod, whatever other pod has its name later.")] = ""
    ready_wanted: Annotated[int, Meta(description="Pods that must be ready once the old ones are gone.")] = 0
    links_at_start: Annotated[int | None, Meta(description="Links to be moved when it began.")] = None
    links_left: Annotated[int | None, Meta(description="Links that are left to be moved.")] = None
    disconnected: Annotated[int | None, Meta(description="Type Disconnect: links closed so far.")] = None
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None
    conditions: list[Condition] = []


IMMUTABLE = ValidationRule(
    "self.gateway == oldSelf.gateway && self.type == oldSelf.type && self.reason == oldSelf.reason"
    " && has(self.pod) == has(oldSelf.pod) && (!has(self.pod) || self.pod == oldSelf.pod)"
    " && self.activeDeadlineSeconds == oldSelf.activeDeadlineSeconds"
    " && has(self.disconnect) == has(oldSelf.disconnect)"
    " && (!has(self.disconnect) || self.disconnect == oldSelf.disconnect)",
    "the spec cannot be changed, except cancel and ttlSecondsAfterFinished: create another LinkOperation",
)
CANCELLED_FOR_GOOD = ValidationRule("!oldSelf.cancel || self.cancel", "a LinkOperation stays cancelled")
POD_OF_A_DRAIN = ValidationRule(
    "(self.type == 'Drain') == has(self.pod)", "a Drain must name its pod, and the other types must not name one"
)
AGENTS_OF_A_DISCONNECT = ValidationRule(
    "(self.type == 'Disconnect') == has(self.disconnect)",
    "a Disconnect must say in `disconnect` which agents are meant, and the other types must not",
)
SELECTOR_OR_AGENTS = ValidationRule(
    "has(self.selector) != has(self.agents)", "disconnect must have either a selector or agents"
)
OPERATION_RULES: Mapping[type[ApiStruct], tuple[ValidationRule, ...]] = {
    LinkOperationSpec: (IMMUTABLE, CANCELLED_FOR_GOOD, POD_OF_A_DRAIN, AGENTS_OF_A_DISCONNECT),
    DisconnectSpec: (SELECTOR_OR_AGENTS,),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One LinkOperation as it was read."""

    name: str
    uid: str
    spec: LinkOperationSpec
    status: LinkOperationStatus


def read_operation_status(body: Object) -> LinkOperationStatus:
    """The status of a resource; an empty one when another version wrote it in a way that cannot be read."""
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
        raise ConfigError(POD_OF_A_DRAIN.message)
    _check_disconnect(spec)
    return Operation(body["metadata"]["name"], body["metadata"]["uid"], spec, read_operation_status(body))


def _check_disconnect(spec: LinkOperationSpec) -> None:
    """Raises ConfigError, also for a selector that no node could read."""
    wanted = spec.disconnect
    if (spec.type is Type.DISCONNECT) != (wanted is not None):
        raise ConfigError(AGENTS_OF_A_DISCONNECT.message)
    if wanted is None:
        return
    if (wanted.selector is None) == (wanted.agents is None):
        raise ConfigError(SELECTOR_OR_AGENTS.message)
    try:
        terms = selector.parse(wanted.selector).terms if wanted.selector is not None else (None,)
    except InvalidRequest as e:
        raise ConfigError(e.message) from e
    if not terms:
        raise ConfigError("the selector of a Disconnect is for all agents: expected at least one term")
