"""What an author has asked for is found again in the pod template that the operator made of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.policy import DEFAULT_POLICY, Policy, violations
from fairlead_operator.api.validation import read_spec
from fairlead_operator.kube.objects import Object
from fairlead_operator.resources.children import children
from fairlead_operator.resources.owner import Owner
from fairlead_operator.resources.template_reading import asked_by_template, never_written

OWNER = Owner("edge", "links", "uid")
PLAIN: Object = {
    "image": "fairlead/gateway:1",
    "redis": {"secretRef": {"name": "redis"}, "caSecretRef": {"name": "ca"}},
    "tokens": {"secretRef": {"name": "tokens"}},
}
SIDECAR: Object = {"name": "side", "image": "example/side:1", "envFrom": [{"secretRef": {"name": "side"}}]}
RICH = PLAIN | {
    "linkTls": {"secretName": "certificate"},
    "image": "example/gateway:1",
    "resources": {"limits": {"memory": "1Gi"}},
    "pod": {
        "labels": {"team": "a"},
        "annotations": {"team.example/port": "9000"},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "runtimeClassName": "gvisor",
        "env": [
            {"name": "LD_PRELOAD", "value": "/x.so"},
            {"name": "X", "valueFrom": {"secretKeyRef": {"name": "payroll", "key": "password"}}},
        ],
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}, {"name": "more", "secret": {"secretName": "more"}}],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        "initContainers": [{"name": "init", "image": "example/init:1"}],
        "containers": [SIDECAR],
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}},
    },
}


def template_of(spec: LinkGatewaySpec) -> Object:
    found: Object = next(one for one in children(OWNER, spec, "checksum") if one["kind"] == "Deployment")
    return found["spec"]["template"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("asked", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("wanted", [PLAIN, RICH], ids=["of plain", "of rich"])
def test_template_violates_what_its_spec_violates(asked: Object, wanted: Object) -> None:
    spec, now = read_spec(asked), read_spec(wanted)
    template, present = template_of(spec), template_of(now)
    assert list(never_written(template, present)) == []
    known = present["metadata"]["labels"]
    expected = [one for one in violations(spec, DEFAULT_POLICY, {}) if "pod.labels" not in one or "team" not in known]
    assert sorted(violations(asked_by_template(template, present, now), DEFAULT_POLICY, {})) == sorted(expected)
    assert len(expected) > (10 if asked is RICH else 2)


def in_pod(**fields: object) -> Callable[[Object], None]:
    return lambda template: template["spec"].update(fields)


def in_container(**fields: object) -> Callable[[Object], None]:
    return lambda template: template["spec"]["containers"][0].update(fields)


def without(name: str, *, container: bool = False) -> Callable[[Object], None]:
    def change(template: Object) -> None:
        del (template["spec"]["containers"][0] if container else template["spec"])[name]

    return change


def probe(**fields: object) -> Object:
    return {"httpGet": {"path": "/livez", "port": "admin", "scheme": "HTTP"}, "periodSeconds": 10, **fields}


EXEC: Object = {"command": ["/opt/fairlead/bin/python", "-c", "print()"]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (in_container(args=["mock-gateway", "--", "/opt/fairlead/bin/python"]), "spec.containers[0].args"),
        (in_container(ports=[{"containerPort": 8080, "hostPort": 443}]), "spec.containers[0].ports"),
        (in_container(livenessProbe={"exec": EXEC}), "spec.containers[0].livenessProbe"),
        (in_container(livenessProbe=probe(exec=EXEC)), "spec.containers[0].livenessProbe"),
        (in_container(startupProbe=probe(httpGet={"host": "10.0.0.1", "port": 1})), "spec.containers[0].startupProbe"),
        (in_container(readinessProbe=probe(periodSeconds=EXEC)), "spec.containers[0].readinessProbe"),
        (in_container(readinessProbe="no probe"), "spec.containers[0].readinessProbe"),
        (without("securityContext"), "spec.securityContext"),
        (without("automountServiceAccountToken"), "spec.automountServiceAccountToken"),
        (without("securityContext", container=True), "spec.containers[0].securityContext"),
        (in_pod(hostNetwork=True), "spec.hostNetwork"),
        (in_pod(hostPID=False), "spec.hostPID"),
        (in_pod(serviceAccountName="admin"), "spec.serviceAccountName"),
        (in_pod(automountServiceAccountToken=True), "spec.automountServiceAccountToken"),
        (in_pod(securityContext={"runAsUser": 0}), "spec.securityContext"),
        (in_container(securityContext={"privileged": True}), "spec.containers[0].securityContext"),
        (in_container(command=["sh"]), "spec.containers[0].command"),
        (in_container(envFrom=[{"secretRef": {"name": "payroll"}}]), "spec.containers[0].envFrom"),
    ],
)
def test_field_that_the_operator_does_not_write_so_is_found(change: Callable[[Object], None], field: str) -> None:
    wanted = template_of(read_spec(PLAIN))
    planted = msgspec.json.decode(msgspec.json.encode(wanted))
    change(planted)
    assert list(never_written(planted, wanted)) == [field]


@pytest.mark.parametrize(
    "volume",
    [
        {"name": "tokens", "hostPath": {"path": "/"}},
        {"name": "redis", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        {"name": "tokens", "secret": {"secretName": "payroll"}},
        {"name": "roles", "secret": {"secretName": "payroll"}},
        {"name": "audit", "persistentVolumeClaim": {"claimName": "theirs"}},
        {"name": "audit", "secret": {"secretName": "payroll"}},
        {"name": "redis", "projected": {"sources": [{"secret": {"name": "payroll"}}]}},
    ],
)
def test_volume_under_one_of_the_operators_names_is_checked_as_well(volume: Object) -> None:
    spec = read_spec(PLAIN)
    wanted = template_of(spec)
    planted = msgspec.json.decode(msgspec.json.encode(wanted))
    planted["spec"]["volumes"] = [volume]
    faults = "; ".join(violations(asked_by_template(planted, wanted, spec), DEFAULT_POLICY, {}))
    assert "payroll" in faults or "pod.volumes: the type" in faults


@pytest.mark.parametrize(
    ("path", "refused"),
    [("/opt/fairlead/lib/python3.13/site-packages/sitecustomize.py", True), ("/etc/fairlead/../ld.so.preload", True),
     ("/more", False)],
)  # fmt: skip
def test_mount_that_replaces_programs_is_found(path: str, refused: bool) -> None:
    """The operator's own mounts, which are in /etc, are not taken for such."""
    spec = read_spec(PLAIN | {"roles": {"configMap": "mine"}, "auditLog": {}})
    wanted = template_of(spec)
    planted = msgspec.json.decode(msgspec.json.encode(wanted))
    planted["spec"]["containers"][0]["volumeMounts"].append({"name": "roles", "mountPath": path, "subPath": "evil"})
    found = violations(asked_by_template(planted, wanted, spec), DEFAULT_POLICY.merged(Policy(secrets=("*",))), {})
    assert [f"at {path}" in one for one in found] == [True] * refused


def test_periods_and_thresholds_of_probes_are_the_authors() -> None:
    probes = {"liveness": {"periodSeconds": 20, "timeoutSeconds": 9, "failureThreshold": 5, "initialDelaySeconds": 1}}
    spec = read_spec(PLAIN | {"pod": {"probes": probes}})
    assert list(never_written(template_of(spec), template_of(read_spec(PLAIN)))) == []
    assert list(never_written(template_of(read_spec(PLAIN)), template_of(spec))) == []
