"""Reads a pod template that the operator has applied, and finds what its author asked for. Pure.

The accepted template of a canary is kept as it was applied, so that it can be applied again (see
`runtime.canary.accepted_template`). The operator's policy may have become stricter meanwhile, and the record is an
object in the namespace of the author, who may have changed it. So `acceptance` uses this module to check the template
before it is applied again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.pod_spec import EnvVar, Pod, lies_in, mounted_at
from fairlead_operator.api.policy import secrets_in
from fairlead_operator.api.validation import RESERVED_FOLDERS
from fairlead_operator.kube.objects import Object
from fairlead_operator.resources.deployment import SECRETS_ANNOTATION

SECRETS = frozenset({"secret", "projected"})
OWN_VOLUMES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("tokens", "redis", "link-tls", "link-client-ca", "audit-key"), SECRETS),
    **dict.fromkeys(("roles", "issuers", "event-sinks"), frozenset({"secret", "configMap"})),
    **dict.fromkeys(("audit", "terminals"), frozenset({"emptyDir"})),
}
"""The volumes that the operator makes without asking the policy for more than their Secrets, and their types."""
FREE = (
    "terminationGracePeriodSeconds", "containers", "volumes", "topologySpreadConstraints", "initContainers",
    "imagePullSecrets", "nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName",
)  # fmt: skip
"""The fields of a pod that follow from the spec. All others are the same in every template of the operator."""
CONTAINER = ("image", "imagePullPolicy", "env", "resources", "volumeMounts", "lifecycle")
"""Those of the gateway's container."""
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
"""Of these the spec decides the numbers alone: a probe can run a program."""


def asked_by_template(template: Object, wanted: Object, spec: LinkGatewaySpec) -> LinkGatewaySpec:
    """A spec that asks for the pods of `template`, for the Redis and the tokens of `spec`, and for nothing else.
    `wanted` is the template of `spec`, which also has the operator's own labels.
    """
    meta, pod = template["metadata"], template["spec"]
    gateway, *others = pod["containers"]
    known = wanted["metadata"]["labels"].items()
    own = [volume for volume in pod["volumes"] if _is_own(volume)]
    secrets = [*pod.get("imagePullSecrets", []), *({"name": name} for name in secrets_in(own))]
    return LinkGatewaySpec(
        image=gateway["image"],
        redis=spec.redis,
        tokens=spec.tokens,
        pod=Pod(
            labels=dict(meta["labels"].items() - known),
            annotations={key: value for key, value in meta["annotations"].items() if key != SECRETS_ANNOTATION},
            image_pull_secrets=secrets,
            tolerations=pod.get("tolerations", []),
            priority_class_name=pod.get("priorityClassName"),
            runtime_class_name=pod.get("runtimeClassName"),
            env=[_variable(one) for one in gateway["env"]],
            volumes=[volume for volume in pod["volumes"] if volume not in own],
            volume_mounts=[one for one in gateway["volumeMounts"] if not lies_in(mounted_at(one), RESERVED_FOLDERS)],
            init_containers=pod.get("initContainers", []),
            containers=others,
            lifecycle=gateway.get("lifecycle"),
        ),
    )


def never_written(template: Object, wanted: Object) -> Iterator[str]:
    """The fields of `template` that the operator cannot have written like this. `wanted` is the template of the present
    spec.
    """
    pod, now = template["spec"], wanted["spec"]
    for name in (*pod, *(now.keys() - pod)):
        if name not in FREE and pod.get(name) != now.get(name):
            yield f"spec.{name}"
    gateway, present = pod["containers"][0], now["containers"][0]
    for name in (*gateway, *(present.keys() - gateway)):
        ours, theirs = present.get(name), gateway.get(name)
        if name in PROBES:
            ours, theirs = _without_numbers(ours), _without_numbers(theirs)
        if name not in CONTAINER and theirs != ours:
            yield f"spec.containers[0].{name}"


def _without_numbers(probe: Any) -> Any:
    if not isinstance(probe, Mapping):
        return probe
    return {name: value for name, value in probe.items() if not isinstance(value, int)}


def _is_own(volume: Object) -> bool:
    """Whether it is one of the operator's volumes that need no permission."""
    sources = [volume, *volume.get("projected", {}).get("sources", [])]
    kinds = {kind for source in sources for kind in source.keys() - {"name"}}
    return kinds <= OWN_VOLUMES.get(str(volume.get("name")), frozenset())


def _variable(entry: Any) -> EnvVar:
    return EnvVar(name=entry["name"], value=entry.get("value"), value_from=entry.get("valueFrom"))
