"""What the fields of a LinkGateway must be to each other, and `read`, which holds a resource against all of it.

`crd` prints the rules into the schema as CEL, so that the API server enforces them; `read`, called by the steward, says
the same again, because a resource may be older than its CRD. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from fairlead.errors import ConfigError
from fairlead_operator.spec import LinkGatewaySpec, Redis, Replicas


class Rule(NamedTuple):
    """What one field says of another, in CEL."""

    holds: str
    message: str
    told: str = ""
    """CEL that makes the message of the numbers; `message` stands for it where that cannot be evaluated."""


RULES: Mapping[type[Struct], tuple[Rule, ...]] = {
    Replicas: (Rule("self.min <= self.max", "replicas.min must not be greater than replicas.max"),),
    Redis: (Rule("has(self.url) != has(self.secretRef)", "redis needs exactly one of url and secretRef"),),
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

LISTENS = "the Services and the probes know where a gateway listens"
OPERATORS_ENV: Mapping[str, str] = {
    "FAIRLEAD_NODE": "a node is called as its pod, which is how its row is found",
    "FAIRLEAD_WORKERS": "a pod is one node; for more links raise capacity or replicas",
    "FAIRLEAD_LINK_HOST": LISTENS,
    "FAIRLEAD_LINK_PORT": LISTENS,
    "FAIRLEAD_API_HOST": LISTENS,
    "FAIRLEAD_API_PORT": LISTENS,
    "FAIRLEAD_ADMIN_HOST": LISTENS,
    "FAIRLEAD_ADMIN_PORT": LISTENS,
    "FAIRLEAD_REDIS": "set redis",
    "FAIRLEAD_AGENT_TOKEN": "set tokens.secretRef",
    "FAIRLEAD_AGENT_TOKEN_FILE": "set tokens.secretRef",
    "FAIRLEAD_PLATFORM_TOKEN": "set tokens.secretRef",
    "FAIRLEAD_PLATFORM_TOKEN_FILE": "set tokens.secretRef",
    "FAIRLEAD_CAPACITY": "set capacity",
    "FAIRLEAD_ACCEPT_RATE": "set acceptRate",
    "FAIRLEAD_DRAIN_RATE": "set drain.rate",
    "FAIRLEAD_DRAIN_TIMEOUT": "it is capacity ÷ drain.rate, set those",
    "FAIRLEAD_SHUTDOWN_DELAY": "set drain.shutdownDelaySeconds",
    "FAIRLEAD_LOG_LEVEL": "set logLevel",
    "FAIRLEAD_TRACE_ENDPOINT": "set telemetry.otlpEndpoint",
}
"""What `pod.env` may not name, and why or what to do instead: the drain, the scale and the probes are built on it."""


def faults(spec: LinkGatewaySpec) -> list[str]:
    found = []
    if spec.replicas.min > spec.replicas.max:
        found.append(RULES[Replicas][0].message)
    if (spec.redis.url is None) == (spec.redis.secret_ref is None):
        found.append(RULES[Redis][0].message)
    if spec.drain_seconds > spec.drain.max_seconds:
        found.append(
            f"a full pod could not drain in time: capacity {spec.capacity} at drain.rate {spec.drain.rate} "
            f"takes {spec.drain_seconds} s, and drain.maxSeconds is {spec.drain.max_seconds}; "
            "raise drain.rate or drain.maxSeconds, or lower capacity"
        )
    names = [str(entry.get("name", "")) for entry in spec.pod.env]
    found += [f"pod.env must not set {name}: {OPERATORS_ENV[name]}" for name in names if name in OPERATORS_ENV]
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
