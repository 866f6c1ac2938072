"""The Deployment of the gateway: each pod is one node, which drains when it is told to stop. Pure.

Called by `children`. There is no preStop hook: the node itself handles SIGTERM. It tells its agents when to reconnect
and keeps serving until the last one has left and endpoints and ingress controllers have dropped the pod. The grace
period covers the longer of the two, plus a margin for the stop. Pods meet the Pod Security Standard "restricted": no
root, a read-only root file system, no capabilities, no token of the API server.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from fairlead_operator.api.access.access_spec import ClonePolicy
from fairlead_operator.api.gateway_spec import GROUP, LinkGatewaySpec
from fairlead_operator.api.network_spec import ClientCertHeader
from fairlead_operator.api.pod_spec import Probe
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.workload_status import REVISION_LABEL
from fairlead_operator.resources.files import mounts

LINK_PORT, API_PORT, ADMIN_PORT = 8080, 8081, 8082
PORTS = {LINK_PORT: "links", API_PORT: "api", ADMIN_PORT: "admin"}
USER = 65532
"""The user of the images, a uid without an entry in any passwd file."""
REVISION_FIELD = f"metadata.labels['{REVISION_LABEL}']"
SECRETS_ANNOTATION = f"{GROUP}/secrets"
"""Annotation of the pod template: a checksum of the Secrets that a pod reads at its start."""
TEMPLATE_ANNOTATION = f"{GROUP}/template"
"""Annotation of the Deployment: the hash of its pod template as it was applied."""
HELD_SECONDS = 365 * 86_400
"""minReadySeconds of a Deployment that must not terminate any pod: no new pod becomes available before the operator
says so."""
NO_DEADLINE = 2**31 - 1
"""The progressDeadlineSeconds that Kubernetes treats as no deadline; it must be greater than minReadySeconds."""
START_SECONDS = 60
"""Seconds that the startup probe allows: a node waits 30 s for Redis at its start, then reports why and exits."""


def deployment(
    name: str, labels: dict[str, str], selector: dict[str, str], spec: LinkGatewaySpec, checksum: str = ""
) -> Object:
    """`checksum` represents the contents of the Secrets that a pod reads at its start: when it changes, the pods are
    replaced."""
    template: Object = {
        "metadata": {
            "labels": {**spec.pod.labels, **labels},
            "annotations": {**spec.pod.annotations, **({SECRETS_ANNOTATION: checksum} if checksum else {})},
        },
        "spec": _pod(name, selector, spec),
    }
    body: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": selector},
            # By default all new pods are made at once and are ready before the first old one terminates, so that its
            # agents have somewhere to go.
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
        },
    }
    return with_template(body, template)


def with_template(body: Object, template: Object) -> Object:
    """The Deployment `body` with another pod template."""
    annotations = {**body["metadata"].get("annotations", {}), TEMPLATE_ANNOTATION: hash_of(template)}
    meta, spec = {**body["metadata"], "annotations": annotations}, {**body["spec"], "template": template}
    return {**body, "metadata": meta, "spec": spec}


def hash_of(template: Object) -> str:
    """Identifies a pod template as the operator applies it."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def held(body: Object, max_surge: Any) -> Object:
    """The Deployment `body`, changed to create up to `max_surge` pods of a new template and to terminate none."""
    spec = {
        **body["spec"],
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": _count(max_surge), "maxUnavailable": 0}},
        "minReadySeconds": HELD_SECONDS,
        "progressDeadlineSeconds": NO_DEADLINE,
    }
    return {**body, "spec": spec}


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
        "volumes": [*(mount.volume for mount in mounts(spec)), *pod.volumes],
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
    body: Object = {
        "name": "gateway",
        "image": spec.image,
        "imagePullPolicy": spec.pod.image_pull_policy,
        "args": ["serve"],
        "env": _env(spec),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for port, name in PORTS.items()],
        "startupProbe": _probe("/livez", probes.startup, period=2, failures=START_SECONDS // 2),
        "livenessProbe": _probe("/livez", probes.liveness, period=10, failures=3),
        # Fails within 4 s of SIGTERM, for load balancers that rely on probes alone; endpoints drop the pod at once.
        "readinessProbe": _probe("/readyz", probes.readiness, period=2, failures=2),
        "resources": _resources(spec),
        # The last line of a crashed container's log is shown in the condition PodsRunning.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*(mount.volume_mount for mount in mounts(spec)), *pod.volume_mounts],
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
    """A number of pods or a percentage, as a Deployment accepts it: 2 or "2%", but not "2"."""
    return int(value) if str(value).isdecimal() else value


def _env(spec: LinkGatewaySpec) -> list[Object]:
    """The operator's variables, then the author's. `validation` refuses those that would override the operator's."""
    plain: dict[str, str | int | float] = {
        "FAIRLEAD_LINK_HOST": "0.0.0.0",
        "FAIRLEAD_API_HOST": "0.0.0.0",
        "FAIRLEAD_ADMIN_HOST": "0.0.0.0",
        "FAIRLEAD_CAPACITY": spec.capacity,
        "FAIRLEAD_EXPECTED_ACCEPT_RATE": spec.accept_rate,
        "FAIRLEAD_DRAIN_TIMEOUT": spec.drain_seconds,
        "FAIRLEAD_SHUTDOWN_DELAY": spec.drain.shutdown_delay_seconds,
        "FAIRLEAD_FORGET_AFTER": spec.forget_after_seconds,
        "FAIRLEAD_LOG_LEVEL": spec.log_level,
    }
    if spec.redis.url is not None:
        plain["FAIRLEAD_REDIS"] = spec.redis.url
    for mount in mounts(spec):
        plain |= mount.env
    plain["FAIRLEAD_REQUIRE_IDENTITY" if spec.identity_required else "FAIRLEAD_INSECURE_SHARED_TOKEN"] = "true"
    if spec.clone_policy is not None:
        plain["FAIRLEAD_CLONE_POLICY"] = ClonePolicy(spec.clone_policy).value.lower()
    if spec.trusted_proxies:
        plain["FAIRLEAD_TRUSTED_PROXIES"] = ",".join(spec.trusted_proxies)
    if spec.link_client_cert_header is not None:
        plain["FAIRLEAD_LINK_CLIENT_CERT_HEADER"] = ClientCertHeader(spec.link_client_cert_header).value
    if spec.telemetry.otlp_endpoint:
        plain["FAIRLEAD_TRACE_ENDPOINT"] = spec.telemetry.otlp_endpoint
    named: dict[str, Object] = {
        # The node is named after its pod: that is how the operator finds its row in Redis.
        "FAIRLEAD_NODE": {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
        # A restarted container recognises the row that it wrote before by the uid of its pod.
        "FAIRLEAD_POD_UID": {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
        # During a rollout the nodes of the old revision leave new links to those of the new one.
        "FAIRLEAD_REVISION": {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": REVISION_FIELD}}},
        **{name: {"value": str(value)} for name, value in plain.items()},
    }
    for entry in spec.pod.env:
        given = {"value": entry.value, "valueFrom": entry.value_from}
        named[entry.name] = {key: value for key, value in given.items() if value is not None}
    return [{"name": name, **value} for name, value in named.items()]


def _probe(path: str, probe: Probe | None, *, period: int, failures: int) -> Object:
    """A probe of the container: the values that `probe` gives replace the defaults."""
    given = msgspec.to_builtins(probe) if probe is not None else {}
    return {
        "httpGet": {"path": path, "port": PORTS[ADMIN_PORT], "scheme": "HTTP"},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": 2,
        **{name: value for name, value in given.items() if value is not None},
    }


def _spread(selector: dict[str, str], spec: LinkGatewaySpec) -> list[Object]:
    """Spreads the pods evenly over zones and hosts if possible, but not at any price: a pod that is not scheduled
    serves nobody.
    """
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
