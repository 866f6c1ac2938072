"""Rules that relate the fields of a LinkGateway, and `read_spec`, which checks a resource against all of them. Pure.

`crd` prints the rules into the schema as CEL, so that the API server enforces them. `read_spec`, which the reconciler
calls, checks them again, because a resource may be older than its CRD.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from fairlead.errors import ConfigError
from fairlead.fleet.moves.move_rate import FINAL_SECONDS
from fairlead_operator.api.access.access_spec import MountedFile
from fairlead_operator.api.field_types import ApiStruct, is_count_or_percent, is_quantity
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas
from fairlead_operator.api.pod_spec import Pod, RollingUpdate, lies_in, mounted_at


class ValidationRule(NamedTuple):
    """An entry of x-kubernetes-validations: a condition on several fields, in CEL."""

    rule: str
    message: str
    message_expression: str = ""
    """CEL that builds the message from the values. `message` is used if it cannot be evaluated."""


ADDRESSES = "the Services and the probes use the gateway's default addresses"
RESERVED_ENV: Mapping[str, str] = {
    "FAIRLEAD_NODE": "the node has the name of its pod, by which the operator finds its row in Redis",
    "FAIRLEAD_POD_UID": "the pod has one UID, by which a restarted container keeps its name",
    "FAIRLEAD_REVISION": "it is that of the pod's template, by which a rollout directs new links",
    "FAIRLEAD_WORKERS": "a pod is one node; for more links raise capacity or replicas",
    "FAIRLEAD_LINK_HOST": ADDRESSES,
    "FAIRLEAD_LINK_PORT": ADDRESSES,
    "FAIRLEAD_API_HOST": ADDRESSES,
    "FAIRLEAD_API_PORT": ADDRESSES,
    "FAIRLEAD_ADMIN_HOST": ADDRESSES,
    "FAIRLEAD_ADMIN_PORT": ADDRESSES,
    "FAIRLEAD_REDIS": "set redis",
    "FAIRLEAD_REDIS_FILE": "set redis.secretRef",
    "FAIRLEAD_REDIS_CA_FILE": "set redis.caSecretRef",
    "FAIRLEAD_AGENT_TOKEN": "set tokens.secretRef",
    "FAIRLEAD_AGENT_TOKEN_FILE": "set tokens.secretRef",
    "FAIRLEAD_PLATFORM_TOKEN": "set tokens.secretRef",
    "FAIRLEAD_PLATFORM_TOKEN_FILE": "set tokens.secretRef",
    "FAIRLEAD_ISSUER_KEY": "set tokens.secretRef.issuerKey",
    "FAIRLEAD_REQUIRE_IDENTITY": "set requireIdentity",
    "FAIRLEAD_INSECURE_SHARED_TOKEN": "set requireIdentity to false",
    "FAIRLEAD_REDIS_CERT_FILE": "set redis.clientTls",
    "FAIRLEAD_REDIS_KEY_FILE": "set redis.clientTls",
    "FAIRLEAD_ROLES": "set roles",
    "FAIRLEAD_ISSUERS": "set issuers",
    "FAIRLEAD_EVENT_SINKS": "set eventSinks",
    "FAIRLEAD_AUDIT_LOG": "set auditLog",
    "FAIRLEAD_AUDIT_KEY": "set auditLog.keySecretRef",
    "FAIRLEAD_AUDIT_ENDPOINT": "set auditLog.otlpEndpoint",
    "FAIRLEAD_TERMINAL_RECORDINGS": "set terminalRecordings",
    "FAIRLEAD_LINK_TLS_CLIENT_CA": "set linkTls.clientCa",
    "FAIRLEAD_LINK_TLS_CLIENT_AUTH": "set linkTls.clientCa.auth",
    "FAIRLEAD_LINK_TLS_CLIENT_CRL": "set linkTls.clientCa.crlKey",
    "FAIRLEAD_LINK_CLIENT_CERT_HEADER": "set linkClientCertHeader",
    "FAIRLEAD_TRUSTED_PROXIES": "set trustedProxies",
    "FAIRLEAD_CLONE_POLICY": "set clonePolicy",
    "FAIRLEAD_LINK_TLS_CERT": "set linkTls.secretName",
    "FAIRLEAD_LINK_TLS_KEY": "set linkTls.secretName",
    "FAIRLEAD_CAPACITY": "set capacity",
    "FAIRLEAD_EXPECTED_ACCEPT_RATE": "set acceptRate",
    "FAIRLEAD_DRAIN_TIMEOUT": "it follows from capacity, acceptRate and moves.maxPerSecond: set those",
    "FAIRLEAD_SHUTDOWN_DELAY": "set drain.shutdownDelaySeconds",
    "FAIRLEAD_FORGET_AFTER": "set forgetAfterSeconds",
    "FAIRLEAD_LOG_LEVEL": "set logLevel",
    "FAIRLEAD_TRACE_ENDPOINT": "set telemetry.otlpEndpoint",
}
"""The variables that `pod.env` must not set, each with the reason or with what to set instead. The drain, the scale and
the probes depend on them."""
RESERVED_NAMES: Mapping[str, frozenset[str]] = {
    "containers": frozenset({"gateway"}),
    "init_containers": frozenset({"gateway"}),
    "volumes": frozenset(
        {
            "tokens",
            "redis",
            "link-tls",
            "link-client-ca",
            "roles",
            "issuers",
            "event-sinks",
            "audit",
            "audit-key",
            "terminals",
        }
    ),
}
"""Names of containers and volumes that the operator itself uses in a pod."""
RESERVED_FOLDERS = ("/etc/fairlead", "/var/lib/fairlead")
"""The folders in which a pod has its Secrets, and what it writes; nothing else may be mounted there."""

REPLICAS_IN_ORDER = ValidationRule("self.min <= self.max", "replicas.min must not be greater than replicas.max")
ONE_REDIS = ValidationRule("has(self.url) != has(self.secretRef)", "redis needs exactly one of url and secretRef")
CLIENT_TLS_NEEDS_TLS = ValidationRule(
    "!has(self.clientTls) || !has(self.url) || self.url.startsWith('rediss://')",
    "redis.clientTls needs a rediss:// URL: only such a server asks for a certificate",
)
ONE_FILE = ValidationRule(
    "has(self.configMap) != has(self.secret)", "roles, issuers and eventSinks need exactly one of configMap and secret"
)
CA_NEEDS_TLS = ValidationRule(
    "!has(self.caSecretRef) || !has(self.url) || self.url.startsWith('rediss')",
    "redis.caSecretRef needs a rediss:// URL: only such a server has a certificate to verify",
)
ROLLOUT_CAN_MOVE = ValidationRule(
    "!(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",
    "rollingUpdate.maxSurge and maxUnavailable are both 0, so no pod could ever be replaced: raise one of them",
)
LINK_TLS_ALONE = ValidationRule(
    "!has(self.linkTls) || (!(has(self.ingress) && self.ingress.enabled) && "
    "!(has(self.httpRoute) && self.httpRoute.enabled))",
    "linkTls needs ingress and httpRoute to be off, because they would send plain HTTP to pods that speak TLS: expose "
    "the Service by services.agents.type, or pass TLS through by a route of your own",
)
IDENTITY_IS_POSSIBLE = ValidationRule(
    "!has(self.requireIdentity) || !self.requireIdentity || has(self.tokens.secretRef.issuerKey) || "
    "(has(self.linkTls) && has(self.linkTls.clientCa)) || has(self.linkClientCertHeader)",
    "requireIdentity needs tokens.secretRef.issuerKey, linkTls.clientCa or linkClientCertHeader: no agent could have "
    "an identity otherwise",
)
HEADER_NEEDS_PROXIES = ValidationRule(
    "!has(self.linkClientCertHeader) || (has(self.trustedProxies) && size(self.trustedProxies) > 0)",
    "linkClientCertHeader needs trustedProxies: from anybody else the header is refused",
)
ENV_IS_FREE = ValidationRule(
    f"self.env.all(one, !(one.name in {sorted(RESERVED_ENV)}))",
    "pod.env must not set what the operator sets itself; docs/operator.md names the field to set instead",
)
_HALF = "(self.acceptRate + 1) / 2"  # integer division, so this is half of it, rounded up
_RATE = f"({_HALF} < self.moves.maxPerSecond ? {_HALF} : self.moves.maxPerSecond)"
_SECONDS = f"((self.capacity + {_RATE} - 1) / {_RATE} + {FINAL_SECONDS})"
DRAIN_FITS = ValidationRule(
    f"{_SECONDS} <= self.drain.maxSeconds",
    "a full pod could not drain in time: capacity ÷ the lesser of moves.maxPerSecond and half of acceptRate, and "
    f"{FINAL_SECONDS} s for commands, must not be more than drain.maxSeconds",
    "'a full pod could not drain in time: capacity %d at %d moves per second (the lesser of moves.maxPerSecond and "
    f"half of acceptRate) and {FINAL_SECONDS} s for commands take %d s, and drain.maxSeconds is %d; raise one of "
    f"these, or lower capacity'.format([self.capacity, {_RATE}, {_SECONDS}, self.drain.maxSeconds])",
)

GATEWAY_RULES: Mapping[type[ApiStruct], tuple[ValidationRule, ...]] = {
    Replicas: (REPLICAS_IN_ORDER,),
    Redis: (ONE_REDIS, CA_NEEDS_TLS, CLIENT_TLS_NEEDS_TLS),
    MountedFile: (ONE_FILE,),
    RollingUpdate: (ROLLOUT_CAN_MOVE,),
    Pod: (ENV_IS_FREE,),
    LinkGatewaySpec: (DRAIN_FITS, LINK_TLS_ALONE, IDENTITY_IS_POSSIBLE, HEADER_NEEDS_PROXIES),
}
"""The rules for the API server. `faults` checks the same in Python, and a test compares the two."""


def read_spec(spec: Mapping[str, Any]) -> LinkGatewaySpec:
    """The spec of a resource; raises ConfigError with everything that is wrong."""
    try:
        known = msgspec.convert(dict(spec), LinkGatewaySpec)
    except msgspec.ValidationError as e:
        raise ConfigError(f"the spec cannot be read: {e}") from e
    if found := faults(known):
        raise ConfigError("; ".join(found), faults=tuple(found))
    return known


def faults(spec: LinkGatewaySpec) -> list[str]:
    """Everything that is wrong with `spec`, one sentence each."""
    found = []
    if spec.replicas.min > spec.replicas.max:
        found.append(REPLICAS_IN_ORDER.message)
    if (spec.redis.url is None) == (spec.redis.secret_ref is None):
        found.append(ONE_REDIS.message)
    if spec.redis.ca_secret_ref and spec.redis.url and not spec.redis.url.startswith("rediss"):
        found.append(CA_NEEDS_TLS.message)
    if spec.redis.client_tls and spec.redis.url and not spec.redis.url.startswith("rediss://"):
        found.append(CLIENT_TLS_NEEDS_TLS.message)
    if any((file.config_map is None) == (file.secret is None) for file in spec.files):
        found.append(ONE_FILE.message)
    routes = (spec.ingress, spec.http_route)
    if spec.link_tls is not None and any(route is not None and route.enabled for route in routes):
        found.append(LINK_TLS_ALONE.message)
    certified = spec.link_tls is not None and spec.link_tls.client_ca is not None
    certified = certified or spec.link_client_cert_header is not None
    if spec.link_client_cert_header is not None and not spec.trusted_proxies:
        found.append(HEADER_NEEDS_PROXIES.message)
    if spec.require_identity and spec.tokens.secret_ref.issuer_key is None and not certified:
        found.append(IDENTITY_IS_POSSIBLE.message)
    if spec.drain_seconds > spec.drain.max_seconds:
        found.append(
            f"a full pod could not drain in time: capacity {spec.capacity} at {spec.moves_of_one} moves per second "
            f"(the lesser of moves.maxPerSecond and half of acceptRate) and {FINAL_SECONDS} s for commands take "
            f"{spec.drain_seconds} s, and drain.maxSeconds is {spec.drain.max_seconds}; raise one of these, or lower "
            "capacity"
        )
    names = [variable.name for variable in spec.pod.env]
    found += [f"pod.env must not set {name}: {RESERVED_ENV[name]}" for name in names if name in RESERVED_ENV]
    return found + _wrong_amounts(spec) + _reserved_names(spec.pod)


def _wrong_amounts(spec: LinkGatewaySpec) -> list[str]:
    """Faults of fields that are integers or strings, whose type msgspec cannot check."""
    found = [
        f"resources.{part}.{name}: {str(value)[:40]!r} is not a quantity such as 500m or 1Gi"
        for part, amounts in (("requests", spec.resources.requests), ("limits", spec.resources.limits))
        for name, value in amounts.items()
        if not is_quantity(value)
    ]
    rolling = spec.rolling_update
    for name, value in (("maxSurge", rolling.max_surge), ("maxUnavailable", rolling.max_unavailable)):
        if not is_count_or_percent(value):
            found.append(f"rollingUpdate.{name}: {str(value)[:40]!r} is neither a number of pods nor a percentage")
    if {str(rolling.max_surge), str(rolling.max_unavailable)} <= {"0", "0%"}:
        found.append(ROLLOUT_CAN_MOVE.message)
    return found


def _reserved_names(pod: Pod) -> list[str]:
    """Containers, volumes and mounts that would replace what the operator makes."""
    found = []
    for part, reserved in RESERVED_NAMES.items():
        used = [str(entry.get("name", "")) for entry in getattr(pod, part)]
        field = {"init_containers": "initContainers"}.get(part, part)
        found += [f"pod.{field}: the name {name} is reserved: choose another" for name in used if name in reserved]
    for mount in pod.volume_mounts:
        path = mounted_at(mount)
        if lies_in(path, RESERVED_FOLDERS):
            found.append(f"pod.volumeMounts: the operator mounts Secrets and folders at {path}: choose another path")
    return found
