"""The Deployment of the gateway: one node a pod, which drains on SIGTERM for as long as a full one may need.

Called by `children`. There is no preStop hook: the node itself owns SIGTERM, tells its agents their slots and goes on
serving until the last has left and until endpoints and ingress have forgotten the pod. So the grace period is the
longer of the two and the stop behind it. Pods fit Pod Security "restricted": no root, nothing writable, no capability,
no token of the API server.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead_operator.api.gateway_spec import GROUP, LinkGatewaySpec
from fairlead_operator.api.pod_spec import Probe
from fairlead_operator.kube.objects import Object

LINK_PORT, API_PORT, ADMIN_PORT = 8080, 8081, 8082
PORTS = {LINK_PORT: "links", API_PORT: "api", ADMIN_PORT: "admin"}
USER = 65532
"""The images' user, a number without an entry anywhere."""
TOKENS = "/etc/fairlead/tokens"
REDIS = "/etc/fairlead/redis"
SECRETS = f"{GROUP}/secrets"
"""Annotation of the pod template."""
START_SECONDS = 60
"""A node waits 30 s for Redis at its start; then it says why and ends, which is better than being killed."""


def deployment(
    name: str, labels: dict[str, str], selector: dict[str, str], spec: LinkGatewaySpec, secrets: str = ""
) -> Object:
    """`secrets` stands for the contents of the Secrets that a pod reads at its start: another one is another pod."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": selector},
            # By default a new pod is there before an old one goes: agents that are sent away need a door.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": _count(spec.rolling_update.max_surge),
                    "maxUnavailable": _count(spec.rolling_update.max_unavailable),
                },
            },
            "minReadySeconds": spec.rolling_update.min_ready_seconds,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": max(600, 2 * spec.grace_seconds),
            "template": {
                "metadata": {
                    "labels": {**spec.pod.labels, **labels},
                    "annotations": {**spec.pod.annotations, **({SECRETS: secrets} if secrets else {})},
                },
                "spec": _pod(name, selector, spec),
            },
        },
    }


def _pod(name: str, selector: dict[str, str], spec: LinkGatewaySpec) -> Object:
    pod = spec.pod
    body: Object = {
        "serviceAccountName": name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec), *pod.containers],
        "volumes": [{"name": "tokens", "secret": _token_files(spec)}, *_redis_files(spec), *pod.volumes],
        "topologySpreadConstraints": _spread(selector, spec),
    }
    optional: dict[str, Any] = {
        "initContainers": list(pod.init_containers),
        "imagePullSecrets": pod.image_pull_secrets,
        "nodeSelector": pod.node_selector,
        "tolerations": pod.tolerations,
        "affinity": pod.affinity,
        "priorityClassName": pod.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
    }
    return body | {key: value for key, value in optional.items() if value}


def _container(spec: LinkGatewaySpec) -> Object:
    pod, probes = spec.pod, spec.pod.probes
    mounts = [{"name": "tokens", "mountPath": TOKENS, "readOnly": True}]
    if _redis_files(spec):
        mounts.append({"name": "redis", "mountPath": REDIS, "readOnly": True})
    body: Object = {
        "name": "gateway",
        "image": spec.image,
        "imagePullPolicy": spec.pod.image_pull_policy,
        "args": ["serve"],
        "env": _env(spec),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for port, name in PORTS.items()],
        "startupProbe": _probe("/livez", probes.startup, period=2, failures=START_SECONDS // 2),
        "livenessProbe": _probe("/livez", probes.liveness, period=10, failures=3),
        # Red within 4 s of SIGTERM for whoever looks at probes only; endpoints forget a terminating pod at once.
        "readinessProbe": _probe("/readyz", probes.readiness, period=2, failures=2),
        "resources": _resources(spec),
        # Its last words are then told in the LinkGateway's condition PodsRunning.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, *pod.volume_mounts],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return body | ({"lifecycle": dict(pod.lifecycle)} if pod.lifecycle else {})


def _resources(spec: LinkGatewaySpec) -> Object:
    asked = {"requests": dict(spec.resources.requests), "limits": dict(spec.resources.limits)}
    return {part: amounts for part, amounts in asked.items() if amounts}


def _count(value: Any) -> Any:
    """`"2"` is refused by a Deployment, which wants 2 or "2%"."""
    return int(value) if str(value).isdecimal() else value


def _env(spec: LinkGatewaySpec) -> list[Object]:
    """The operator's, then the user's; `spec` refuses those that would replace one of ours."""
    plain: dict[str, str | int | float] = {
        "FAIRLEAD_LINK_HOST": "0.0.0.0",
        "FAIRLEAD_API_HOST": "0.0.0.0",
        "FAIRLEAD_ADMIN_HOST": "0.0.0.0",
        "FAIRLEAD_AGENT_TOKEN_FILE": f"{TOKENS}/agent-token",
        "FAIRLEAD_PLATFORM_TOKEN_FILE": f"{TOKENS}/platform-token",
        "FAIRLEAD_CAPACITY": spec.capacity,
        "FAIRLEAD_ACCEPT_RATE": spec.accept_rate,
        "FAIRLEAD_DRAIN_RATE": spec.drain.rate,
        "FAIRLEAD_DRAIN_TIMEOUT": spec.drain_seconds,
        "FAIRLEAD_SHUTDOWN_DELAY": spec.drain.shutdown_delay_seconds,
        "FAIRLEAD_FORGET_AFTER": spec.forget_after_seconds,
        "FAIRLEAD_LOG_LEVEL": spec.log_level,
    }
    if spec.redis.secret_ref is not None:
        plain["FAIRLEAD_REDIS_FILE"] = f"{REDIS}/url"
    else:
        plain["FAIRLEAD_REDIS"] = str(spec.redis.url)
    if spec.redis.ca_secret_ref is not None:
        plain["FAIRLEAD_REDIS_CA_FILE"] = f"{REDIS}/ca.crt"
    if spec.telemetry.otlp_endpoint:
        plain["FAIRLEAD_TRACE_ENDPOINT"] = spec.telemetry.otlp_endpoint
    named: dict[str, Object] = {
        # The node's name is the pod's: that is how its row is found.
        "FAIRLEAD_NODE": {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
        # By it a container that is started again knows that the row under its name is its own last life's.
        "FAIRLEAD_POD_UID": {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
        **{name: {"value": str(value)} for name, value in plain.items()},
    }
    for entry in spec.pod.env:
        told = {"value": entry.value, "valueFrom": entry.value_from}
        named[entry.name] = {key: value for key, value in told.items() if value is not None}
    return [{"name": name, **value} for name, value in named.items()]


def _token_files(spec: LinkGatewaySpec) -> Object:
    ref = spec.tokens.secret_ref
    return {
        "secretName": ref.name,
        "defaultMode": 0o440,
        "items": [{"key": ref.agent_key, "path": "agent-token"}, {"key": ref.platform_key, "path": "platform-token"}],
    }


def _redis_files(spec: LinkGatewaySpec) -> list[Object]:
    """The volume with the URL of Redis and its authorities: a variable would be seen by whoever may list processes."""
    sources = []
    if url := spec.redis.secret_ref:
        sources.append({"secret": {"name": url.name, "items": [{"key": url.key, "path": "url"}]}})
    if ca := spec.redis.ca_secret_ref:
        sources.append({"secret": {"name": ca.name, "items": [{"key": ca.key, "path": "ca.crt"}]}})
    return [{"name": "redis", "projected": {"defaultMode": 0o440, "sources": sources}}] if sources else []


def _probe(path: str, asked: Probe | None, *, period: int, failures: int) -> Object:
    """`asked` replaces what is ours."""
    given = msgspec.to_builtins(asked) if asked is not None else {}
    return {
        "httpGet": {"path": path, "port": PORTS[ADMIN_PORT], "scheme": "HTTP"},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": 2,
        **{name: value for name, value in given.items() if value is not None},
    }


def _spread(selector: dict[str, str], spec: LinkGatewaySpec) -> list[Object]:
    """Over zones and hosts as well as it goes: a pod that is not placed serves nobody."""
    if spec.pod.topology_spread_constraints is not None:
        return list(spec.pod.topology_spread_constraints)
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector},
            "matchLabelKeys": ["pod-template-hash"],
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]
