"""The operator's policy: it allows nothing beyond its patterns, and has one sentence for each refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead_operator.api.policy import (
    DEFAULT_POLICY,
    Policies,
    Policy,
    SecretState,
    read_policies,
    repository_of,
    secrets_to_read,
    violations,
)
from fairlead_operator.api.validation import read_spec
from fairlead_operator.kube.objects import Object

LEAST: dict[str, Any] = {
    "image": "fairlead/gateway:1", "redis": {"url": "redis://r"}, "tokens": {"secretRef": {"name": "tokens"}},
}  # fmt: skip
LENT = {"tokens": SecretState.LABELLED}


def refused(more: dict[str, Any], policy: Policy = DEFAULT_POLICY, **secrets: SecretState) -> list[str]:
    return violations(read_spec(LEAST | more), policy, LENT | secrets)


def test_minimal_spec_needs_no_policy() -> None:
    assert refused({}) == []
    assert refused({"resources": {"limits": {"cpu": 2}}, "pod": {"nodeSelector": {"a": "b"}}}) == []
    assert refused({"pod": {"env": [{"name": "FAIRLEAD_HEARTBEAT", "value": "20"}]}}) == []


@pytest.mark.parametrize(
    ("more", "message", "policy"),
    [
        ({"image": "evil/gateway:1"}, "image evil/gateway:1: its repository", {"images": ["evil/gateway"]}),
        ({"services": {"agents": {"type": "LoadBalancer"}}}, "services.agents.type LoadBalancer",
         {"serviceTypes": ["L*"]}),
        ({"services": {"platform": {"annotations": {"a/b": ""}}}}, "services.platform.annotations a/b",
         {"serviceAnnotations": ["a/*"]}),
        ({"ingress": {}}, "ingress: the host (none)", {"ingressHosts": ["*"]}),
        ({"ingress": {"hosts": ["a.test"]}}, "ingress: the host a.test", {"ingressHosts": ["*.test"]}),
        ({"httpRoute": {"parentRefs": [{"name": "x"}], "hostnames": ["a.test"]}}, "httpRoute: the host a.test",
         {"ingressHosts": ["a.test"]}),
        ({"pod": {"labels": {"team": "x"}}}, "pod.labels team", {"podLabels": ["team"]}),
        ({"pod": {"annotations": {"sidecar.istio.io/inject": "true"}}}, "pod.annotations sidecar.istio.io/inject",
         {"podAnnotations": ["sidecar.istio.io/*"]}),
        ({"pod": {"tolerations": [{"operator": "Exists"}]}}, "the key (none)", {"tolerations": ["*"]}),
        ({"pod": {"tolerations": [{"key": "spot"}]}}, "pod.tolerations: the key spot", {"tolerations": ["spot"]}),
        ({"pod": {"priorityClassName": "system-node-critical"}}, "pod.priorityClassName system-node-critical",
         {"priorityClasses": ["system-*"]}),
        ({"pod": {"runtimeClassName": "gvisor"}}, "pod.runtimeClassName gvisor", {"runtimeClasses": ["gvisor"]}),
        ({"pod": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}}, "the type hostPath",
         {"volumes": ["hostPath"]}),
        ({"pod": {"volumes": [{"name": "x"}]}}, "the type emptyDir", {"volumes": ["emptyDir"]}),
        ({"pod": {"containers": [{"name": "x", "image": "fairlead/gateway"}]}}, "pod.containers is not allowed",
         {"containers": True}),
        ({"pod": {"initContainers": [{"name": "x", "image": "fairlead/gateway"}]}}, "pod.initContainers is not allowed",
         {"containers": True}),
        ({"pod": {"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}}, "pod.lifecycle is not allowed",
         {"containers": True}),
    ],
)  # fmt: skip
def test_violation_names_the_field_of_the_policy_that_allows_it(
    more: Object, message: str, policy: dict[str, Any]
) -> None:
    (sentence,) = refused(more)
    assert message in sentence
    assert "operator's policy" in sentence
    field = next(iter(policy))
    assert f"(see {field} of the operator's policy)" in sentence, "the field to be changed is named"
    allowed = DEFAULT_POLICY.merged(
        read_policies('{"all": ' + str(policy).replace("'", '"').replace("True", "true") + "}").all
    )
    assert refused(more, allowed) == []


@pytest.mark.parametrize(
    "pod",
    [
        {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "theirs", "key": "k"}}}]},
        {"imagePullSecrets": [{"name": "theirs"}]},
        {"volumes": [{"name": "x", "secret": {"secretName": "theirs"}}]},
        {"volumes": [{"name": "x", "projected": {"sources": [{"secret": {"name": "theirs"}}]}}]},
        {"volumes": [{"name": "x", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "theirs"}}}]},
        {"containers": [{"name": "x", "image": "fairlead/gateway", "envFrom": [{"secretRef": {"name": "theirs"}}]}]},
        {"initContainers": [{"name": "x", "image": "fairlead/gateway",
                             "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "theirs"}}}]}]},
    ],
)  # fmt: skip
def test_secrets_are_found_wherever_a_pod_can_name_one(pod: Object) -> None:
    liberal = Policy(images=("*",), volumes=("*",), containers=True)
    assert "theirs" in secrets_to_read(read_spec(LEAST | {"pod": pod}), liberal)
    (sentence,) = refused({"pod": pod}, liberal, theirs=SecretState.UNLABELLED)
    label = "the label fairlead.dev/gateway-secret=true"
    assert sentence == f"the Secret theirs is not available to LinkGateways: it does not have {label}"
    assert refused({"pod": pod}, liberal, theirs=SecretState.LABELLED) == []
    assert refused({"pod": pod}, liberal.merged(Policy(secrets=("their*",))), theirs=SecretState.UNLABELLED) == []


@pytest.mark.parametrize(
    "names", [{"secretName": "tokens", "name": "theirs"}, {"secretName": "theirs", "name": "tokens"}]
)
def test_a_second_name_hides_no_secret(names: dict[str, str]) -> None:
    """Only one of them means something to Kubernetes, which one depends on the place."""
    for pod in (
        {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {**names, "key": "k"}}}]},
        {"volumes": [{"name": "x", "projected": {"sources": [{"secret": names}]}}]},
        {"volumes": [{"name": "x", "secret": names}]},
    ):
        liberal = Policy(images=("*",), volumes=("*",))
        (sentence,) = refused({"pod": pod}, liberal, theirs=SecretState.UNLABELLED)
        assert "the Secret theirs is not available" in sentence


@pytest.mark.parametrize(
    "path",
    [
        "/opt/fairlead/lib/python3.13/site-packages/sitecustomize.py", "/opt", "/usr/local/lib", "/lib64/libc.so.6",
        "/etc/ld.so.preload", "/", "usr/bin", "//usr//bin/", "/more/../usr/bin", "/./bin",
    ],
)  # fmt: skip
def test_a_mount_that_replaces_programs_runs_programs(path: str) -> None:
    """The volume may be one that the operator makes of what the author names, such as the file of roles."""
    more = {
        "roles": {"configMap": "mine"},
        "pod": {"volumeMounts": [{"name": "roles", "mountPath": path, "subPath": "evil.py"}]},
    }
    (sentence,) = refused(more)
    assert sentence == (
        f"pod.volumeMounts must not replace anything at {path}, where programs and their libraries are (see containers "
        "of the operator's policy)"
    )
    assert refused(more, DEFAULT_POLICY.merged(Policy(containers=True))) == []


@pytest.mark.parametrize("path", ["/more", "/srv/usr/bin", "/optional", "/data/etc", "/tmp"])
def test_other_mounts_replace_no_programs(path: str) -> None:
    assert (
        refused({"roles": {"configMap": "mine"}, "pod": {"volumeMounts": [{"name": "roles", "mountPath": path}]}}) == []
    )


@pytest.mark.parametrize("where", [
    "redis", "tokens", "ca", "certificate", "operator", "client certificate", "client ca", "roles", "issuers",
    "sinks", "audit key",
])  # fmt: skip
@pytest.mark.parametrize("state", [SecretState.UNLABELLED, SecretState.MISSING, SecretState.UNREADABLE])
def test_secret_without_a_known_label_is_refused(where: str, state: SecretState) -> None:
    cases: dict[str, dict[str, Any]] = {
        "redis": {"redis": {"secretRef": {"name": "theirs"}}},
        "tokens": {"tokens": {"secretRef": {"name": "theirs"}}},
        "ca": {"redis": {"url": "rediss://r", "caSecretRef": {"name": "theirs"}}},
        "certificate": {"linkTls": {"secretName": "theirs"}},
        "operator": {"redis": {"url": "redis://r", "operatorSecretRef": {"name": "theirs"}}},
        "client certificate": {"redis": {"url": "rediss://r", "clientTls": {"secretName": "theirs"}}},
        "client ca": {"linkTls": {"secretName": "tokens", "clientCa": {"secretName": "theirs"}}},
        "roles": {"roles": {"secret": "theirs"}},
        "issuers": {"issuers": {"secret": "theirs"}},
        "sinks": {"eventSinks": {"secret": "theirs"}},
        "audit key": {"auditLog": {"keySecretRef": {"name": "theirs"}}},
    }
    (sentence,) = refused(cases[where], theirs=state)
    assert "theirs" in sentence
    assert "fairlead.dev/gateway-secret=true" in sentence


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("fairlead/gateway", "docker.io/fairlead/gateway"),
        ("docker.io/fairlead/gateway:0.1", "docker.io/fairlead/gateway"),
        ("fairlead/gateway@sha256:" + "0" * 64, "docker.io/fairlead/gateway"),
        ("fairlead/gateway:0.1@sha256:" + "0" * 64, "docker.io/fairlead/gateway"),
        ("localhost:5000/x:1", "localhost:5000/x"),
        ("registry.test:5000/a/b", "registry.test:5000/a/b"),
        ("busybox", "docker.io/library/busybox"),
        ("evil.test/x@docker.io/fairlead/gateway", None),
        ("docker.io/fairlead/gateway /etc", None),
        ("", None),
    ],
)
def test_repository_is_the_image_without_tag_and_digest(image: str, repository: str | None) -> None:
    assert repository_of(image) == repository


@given(st.text(alphabet="abc./:@-*[]?", max_size=30))
def test_only_the_projects_own_image_is_taken_for_it(text: str) -> None:
    if repository_of(text) != "docker.io/fairlead/gateway":
        assert violations(read_spec(LEAST | {"image": text or "x"}), DEFAULT_POLICY, LENT)


def test_policy_of_a_namespace_adds_to_the_policy_of_all() -> None:
    policies = read_policies(
        '{"all": {"images": ["a/b"]}, "namespaces": {"x": {"images": ["c/d"], "containers": true}}}'
    )
    assert policies.of("y") == Policy(images=("a/b",))
    assert policies.of("x") == Policy(images=("a/b", "c/d"), containers=True)
    assert Policies().of("x") == DEFAULT_POLICY


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "PYTHONWARNINGS", "LD_PRELOAD", "LD_AUDIT", "OPENSSL_CONF", "GCONV_PATH", "BROWSER"]
)
def test_variable_that_can_load_code_needs_the_right_to_add_containers(name: str) -> None:
    env = {"pod": {"env": [{"name": name, "value": "/config/x"}]}}
    [message] = refused(env)
    assert message.startswith(f"pod.env must not set {name}, ")
    assert refused(env, DEFAULT_POLICY.merged(Policy(containers=True))) == []


def test_images_start_python_in_isolated_mode() -> None:
    lines = (Path(__file__).parents[2] / "Dockerfile").read_text().splitlines()
    starts = [json.loads(line.removeprefix("ENTRYPOINT ")) for line in lines if line.startswith("ENTRYPOINT ")]
    python = [start for start in starts if start[0].endswith("/python")]
    assert [start[-1] for start in python] == ["fairlead_operator", "fairlead"]
    assert all(start[1] == "-I" for start in python)


@pytest.mark.parametrize("text", ["", "[]", '{"all": {"image": ["x"]}}', '{"all": {"images": "x"}}', '{"every": {}}'])
def test_invalid_policy_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the policy cannot be read"):
        read_policies(text)


@pytest.mark.parametrize("field", ["auditLog", "terminalRecordings"])
def test_a_claim_needs_permission_and_a_folder_of_the_pod_does_not(field: str) -> None:
    claims = Policy(volumes=("persistentVolumeClaim",))
    (sentence,) = refused({field: {"claimName": "payroll"}})
    assert f"{field}.claimName: the type persistentVolumeClaim is not allowed" in sentence
    assert refused({field: {"claimName": "payroll"}}, DEFAULT_POLICY.merged(claims)) == []
    assert refused({field: {"sizeLimit": "1Gi"}}) == []
