"""Rules that relate the fields of a LinkGateway, and `read`, which checks a resource against all of them. Pure.

`crd` prints the rules into the schema as CEL, so that the API server enforces them. `read`, which the reconciler calls,
checks them again, because a resource may be older than its CRD.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from fairlead.errors import ConfigError
from fairlead_operator.api.field_types import is_count_or_percent, is_quantity
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas
from fairlead_operator.api.pod_spec import Pod, RollingUpdate


class Rule(NamedTuple):
    """What one field says of another, in CEL."""

    holds: str
    message: str
    told: str = ""
    """CEL that makes the message of the numbers; `message` stands for it where that cannot be evaluated."""


LISTENS = "the Services and the probes know where a gateway listens"
OPERATORS_ENV: Mapping[str, str] = {
    "FAIRLEAD_NODE": "a node is called as its pod, which is how its row is found",
    "FAIRLEAD_POD_UID": "the pod has one UID, by which a container that is started again keeps its name",
    "FAIRLEAD_WORKERS": "a pod is one node; for more links raise capacity or replicas",
    "FAIRLEAD_LINK_HOST": LISTENS,
    "FAIRLEAD_LINK_PORT": LISTENS,
    "FAIRLEAD_API_HOST": LISTENS,
    "FAIRLEAD_API_PORT": LISTENS,
    "FAIRLEAD_ADMIN_HOST": LISTENS,
    "FAIRLEAD_ADMIN_PORT": LISTENS,
    "FAIRLEAD_REDIS": "set redis",
    "FAIRLEAD_REDIS_FILE": "set redis.secretRef",
    "FAIRLEAD_REDIS_CA_FILE": "set redis.caSecretRef",
    "FAIRLEAD_AGENT_TOKEN": "set tokens.secretRef",
    "FAIRLEAD_AGENT_TOKEN_FILE": "set tokens.secretRef",
    "FAIRLEAD_PLATFORM_TOKEN": "set tokens.secretRef",
    "FAIRLEAD_PLATFORM_TOKEN_FILE": "set tokens.secretRef",
    "FAIRLEAD_CAPACITY": "set capacity",
    "FAIRLEAD_ACCEPT_RATE": "set acceptRate",
    "FAIRLEAD_DRAIN_RATE": "set drain.rate",
    "FAIRLEAD_DRAIN_TIMEOUT": "it is capacity ÷ drain.rate, set those",
    "FAIRLEAD_SHUTDOWN_DELAY": "set drain.shutdownDelaySeconds",
    "FAIRLEAD_FORGET_AFTER": "set forgetAfterSeconds",
    "FAIRLEAD_LOG_LEVEL": "set logLevel",
    "FAIRLEAD_TRACE_ENDPOINT": "set telemetry.otlpEndpoint",
}
"""What `pod.env` may not name, and why or what to do instead: the drain, the scale and the probes are built on it."""


RULES: Mapping[type[Struct], tuple[Rule, ...]] = {
    Replicas: (Rule("self.min <= self.max", "replicas.min must not be greater than replicas.max"),),
    Redis: (
        Rule("has(self.url) != has(self.secretRef)", "redis needs exactly one of url and secretRef"),
        Rule(
            "!has(self.caSecretRef) || !has(self.url) || self.url.startsWith('rediss://')",
            "redis.caSecretRef needs a rediss:// URL: only that has a certificate to check",
        ),
    ),
    RollingUpdate: (
        Rule(
            "!(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",
            "rollingUpdate.maxSurge and maxUnavailable are both 0, so no pod could ever be replaced: raise one of them",
        ),
    ),
    Pod: (
        Rule(
            f"self.env.all(one, !(one.name in {sorted(OPERATORS_ENV)}))",
            "pod.env must not set what the operator sets itself; docs/operator.md names the field to set instead",
        ),
    ),
    LinkGatewaySpec: (
        Rule(
            "self.capacity <= self.drain.rate * self.drain.maxSeconds",
            "a full pod could not drain in time: capacity must not be greater than drain.rate × drain.maxSeconds",
            "'a full pod could not drain in time: capacity %d at drain.rate %d takes %d s, and drain.maxSeconds is %d; "
            "raise drain.rate or drain.maxSeconds, or lower capacity'"
            ".format([self.capacity, self.drain.rate, (self.capacity + self.drain.rate - 1) / self.drain.rate,"
            " self.drain.maxSeconds])",
        ),
    ),
}
"""For the API server; `faults` says the same in Python, a test compares."""

OPERATORS_NAMES: Mapping[str, frozenset[str]] = {
    "containers": frozenset({"gateway"}),
    "init_containers": frozenset({"gateway"}),
    "volumes": frozenset({"tokens", "redis"}),
}
"""Names that are the operator's own in a pod."""
OPERATORS_FOLDER = "/etc/fairlead"
"""Where a pod has its Secrets: nothing else may be mounted there."""


def faults(spec: LinkGatewaySpec) -> list[str]:
    found = []
    if spec.replicas.min > spec.replicas.max:
        found.append(RULES[Replicas][0].message)
    one_of, trusted = RULES[Redis]
    if (spec.redis.url is None) == (spec.redis.secret_ref is None):
        found.append(one_of.message)
    if spec.redis.ca_secret_ref and spec.redis.url and not spec.redis.url.startswith("rediss://"):
        found.append(trusted.message)
    if spec.drain_seconds > spec.drain.max_seconds:
        found.append(
            f"a full pod could not drain in time: capacity {spec.capacity} at drain.rate {spec.drain.rate} "
            f"takes {spec.drain_seconds} s, and drain.maxSeconds is {spec.drain.max_seconds}; "
            "raise drain.rate or drain.maxSeconds, or lower capacity"
        )
    names = [one.name for one in spec.pod.env]
    found += [f"pod.env must not set {name}: {OPERATORS_ENV[name]}" for name in names if name in OPERATORS_ENV]
    return found + _amounts(spec) + _taken(spec.pod)


def _amounts(spec: LinkGatewaySpec) -> list[str]:
    """Of the types that a Struct cannot tell from text: whole numbers or words."""
    found = [
        f"resources.{part}.{name}: {str(value)[:40]!r} is not a quantity, as 500m or 1Gi"
        for part, amounts in (("requests", spec.resources.requests), ("limits", spec.resources.limits))
        for name, value in amounts.items()
        if not is_quantity(value)
    ]
    rolling = spec.rolling_update
    for name, value in (("maxSurge", rolling.max_surge), ("maxUnavailable", rolling.max_unavailable)):
        if not is_count_or_percent(value):
            found.append(f"rollingUpdate.{name}: {str(value)[:40]!r} is neither a number of pods nor a percentage")
    if {str(rolling.max_surge), str(rolling.max_unavailable)} <= {"0", "0%"}:
        found.append(RULES[RollingUpdate][0].message)
    return found


def _taken(pod: Pod) -> list[str]:
    """What would stand in the place of something that the operator makes."""
    found = []
    for part, taken in OPERATORS_NAMES.items():
        used = [str(entry.get("name", "")) for entry in getattr(pod, part)]
        field = {"init_containers": "initContainers"}.get(part, part)
        found += [f"pod.{field}: the name {one} is the operator's own; choose another" for one in used if one in taken]
    for mount in pod.volume_mounts:
        path = str(mount.get("mountPath", "")).rstrip("/")
        if path == OPERATORS_FOLDER or path.startswith(f"{OPERATORS_FOLDER}/"):
            found.append(f"pod.volumeMounts: {path} is where the operator mounts Secrets; choose another path")
    return found


def read(spec: Mapping[str, Any]) -> LinkGatewaySpec:
    """The spec of a resource; raises ConfigError with what is wrong."""
    try:
        known = msgspec.convert(dict(spec), LinkGatewaySpec)
    except msgspec.ValidationError as e:
        raise ConfigError(f"the spec cannot be read: {e}") from e
    if wrong := faults(known):
        raise ConfigError("; ".join(wrong), faults=tuple(wrong))
    return known
