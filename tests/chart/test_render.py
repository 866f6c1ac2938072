"""What the chart renders from every values file of charts/fairlead/ci: restricted pods, complete labels, valid
objects."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.identity.agent_key import seed_of_pem
from fairlead.identity.credential import CredentialIssuer
from fairlead.version import __version__
from fairlead_operator.api.gateway_spec import GROUP, VERSION
from fairlead_operator.api.policy import Policies, SecretState, read_policies, secrets_to_read, violations
from fairlead_operator.api.validation import read_spec
from fairlead_operator.resources.owner import Owner

from support.chart.helm import Helm, Render
from support.chart.manifests import named, of_kind, pods

CI = Path(__file__).resolve().parents[2] / "charts" / "fairlead" / "ci"
SETS = sorted(CI.glob("*-values.yaml"))
LABELS = {f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "component", "part-of", "managed-by")}
LABELS |= {"helm.sh/chart"}

every_set = pytest.mark.parametrize("values", SETS, ids=lambda path: path.name.removesuffix("-values.yaml"))


def not_restricted(spec: Mapping[str, Any]) -> list[str]:
    """What of a pod the Pod Security Standard «restricted» (v1.34) refuses, and what we ask for beyond it."""
    wrong = [key for key in ("hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace") if key in spec]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    wrong += [f"volume {one['name']}" for one in spec.get("volumes", ()) if not allowed & set(one)]
    pod = spec.get("securityContext", {})
    if "sysctls" in pod or "seLinuxOptions" in pod:
        wrong.append("sysctls or seLinuxOptions")
    if pod.get("runAsNonRoot") is not True or pod.get("runAsUser", 0) == 0:
        wrong.append("runAsNonRoot and a runAsUser that is not 0")
    if pod.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        wrong.append("seccompProfile")
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            wrong.append(f"{container['name']}: allowPrivilegeEscalation")
        if context.get("capabilities") != {"drop": ["ALL"]}:
            wrong.append(f"{container['name']}: capabilities")
        if context.get("privileged") or context.get("runAsUser") == 0 or context.get("procMount"):
            wrong.append(f"{container['name']}: privileged, root or procMount")
        if context.get("readOnlyRootFilesystem") is not True:
            wrong.append(f"{container['name']}: readOnlyRootFilesystem")
        if any("hostPort" in port for port in container.get("ports", ())):
            wrong.append(f"{container['name']}: hostPort")
        resources = container.get("resources", {})
        if not {"cpu", "memory"} <= set(resources.get("requests", ())) or "memory" not in resources.get("limits", ()):
            wrong.append(f"{container['name']}: resources")
    return wrong


def test_there_is_a_values_file_for_each_way_to_run_the_chart() -> None:
    wanted = {"default", "external-redis", "http-route", "cluster-scope", "two-gateways", "volume"}
    assert {path.name.removesuffix("-values.yaml") for path in SETS} >= wanted


@every_set
def test_helm_lint_passes(helm: Helm, chart: Path, values: Path) -> None:
    done = helm("lint", "--strict", str(chart), "--values", str(values))
    assert done.returncode == 0, done.stdout + done.stderr


@every_set
def test_pods_pass_the_restricted_pod_security_standard(render: Render, values: Path) -> None:
    found = list(pods(render(values)))
    assert found
    wrong = {name: faults for name, _, spec in found if (faults := not_restricted(spec))}
    assert not wrong


def test_the_check_finds_violations_of_the_restricted_standard() -> None:
    assert not_restricted({"hostNetwork": True, "containers": [{"name": "c"}]}) == [
        "hostNetwork", "runAsNonRoot and a runAsUser that is not 0", "seccompProfile", "c: allowPrivilegeEscalation",
        "c: capabilities", "c: readOnlyRootFilesystem", "c: resources",
    ]  # fmt: skip


@every_set
def test_only_the_operator_has_a_token_of_the_api_server(render: Render, values: Path) -> None:
    for name, _, spec in pods(render(values)):
        account = spec.get("serviceAccountName")
        if account is None:
            assert spec.get("automountServiceAccountToken") is False, name
        else:
            assert account in ("fairlead-operator", "fairlead-crds", "mine"), name


@every_set
def test_labels_are_those_that_kubernetes_recommends(render: Render, values: Path) -> None:
    objects = render(values)
    for name, metadata in [
        *((f"{one['kind']} {one['metadata']['name']}", one["metadata"]) for one in objects),
        *((f"pod of {name}", metadata) for name, metadata, _ in pods(objects)),
    ]:
        assert set(metadata["labels"]) >= LABELS, name
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "fairlead"


@every_set
def test_selectors_match_their_own_pods_only(render: Render, values: Path) -> None:
    objects = render(values)
    labels = {name: metadata["labels"] for name, metadata, _ in pods(objects)}
    for one in of_kind(objects, "Deployment", "StatefulSet", "Service", "PodDisruptionBudget"):
        selector = one["spec"]["selector"]
        selector = selector.get("matchLabels", selector)
        meant = [name for name, have in labels.items() if selector.items() <= have.items()]
        assert meant == [one["metadata"]["name"]], one["kind"]
        assert "app.kubernetes.io/version" not in selector, "selectors cannot change with an upgrade"


@every_set
def test_images_are_pinned(render: Render, values: Path) -> None:
    objects = render(values)
    images = [one["image"] for _, _, spec in pods(objects) for one in spec["containers"]]
    images += [one["spec"]["image"] for one in of_kind(objects, "LinkGateway")]
    assert images
    for image in images:
        assert re.search(r"(:[0-9]+\.[0-9]+\.[0-9]+|@sha256:[0-9a-f]{64})$", image), image


@every_set
def test_the_operator_can_read_its_linkgateways(render: Render, values: Path) -> None:
    for one in of_kind(render(values), "LinkGateway"):
        assert one["apiVersion"] == f"{GROUP}/{VERSION}"
        assert len(one["metadata"]["name"]) <= 40
        read_spec(one["spec"])
        # HPA, KEDA and people write it through /scale: an upgrade must not write it back.
        assert "replicas" not in one["spec"].get("scaling", {})


@every_set
def test_no_object_is_rendered_twice(render: Render, values: Path) -> None:
    seen = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in render(values)]
    assert len(seen) == len(set(seen))


@every_set
def test_namespaced_objects_have_their_namespace(render: Render, values: Path) -> None:
    for one in render(values):
        cluster_wide = one["kind"] in ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")
        assert ("namespace" in one["metadata"]) is not cluster_wide, f"{one['kind']} {one['metadata']['name']}"


def test_defaults_install_a_gateway_with_a_valkey_for_evaluation(render: Render) -> None:
    objects = render()
    spec = named(objects, "LinkGateway", "fairlead")["spec"]
    assert spec["redis"] == {"secretRef": {"name": "fairlead-valkey", "key": "url"}}
    assert spec["tokens"] == {"secretRef": {"name": "fairlead-tokens", "issuerKey": "issuer-key"}}
    assert named(objects, "Deployment", "fairlead-operator")["spec"]["replicas"] == 2
    valkey = named(objects, "StatefulSet", "fairlead-valkey")["spec"]
    assert "replicas" not in valkey
    configuration, data = valkey["template"]["spec"]["volumes"]
    assert data == {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}
    args = valkey["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--maxmemory-policy") + 1] == "noeviction"
    assert args[0] == "/etc/valkey/valkey.conf"
    assert configuration["secret"]["secretName"] == "fairlead-valkey"
    text = base64.b64decode(named(objects, "Secret", "fairlead-valkey")["data"]["valkey.conf"]).decode()
    password = base64.b64decode(named(objects, "Secret", "fairlead-valkey")["data"]["password"]).decode()
    assert text == f"requirepass {password}\n"
    assert "requirepass" not in str(valkey)
    assert "env" not in valkey["template"]["spec"]["containers"][0]


def test_an_external_redis_replaces_the_valkey_for_evaluation(render: Render) -> None:
    by_secret, by_url = render(CI / "external-redis-values.yaml"), render(CI / "http-route-values.yaml")
    for objects in (by_secret, by_url):
        assert not of_kind(objects, "StatefulSet")
    assert [one["metadata"]["name"] for one in of_kind(by_url, "Secret")] == ["fairlead-redis", "fairlead-tokens"]
    assert not of_kind(by_secret, "Secret")
    spec = named(by_secret, "LinkGateway", "fairlead")["spec"]
    assert spec["redis"] == {
        "secretRef": {"name": "my-redis", "key": "uri"}, "caSecretRef": {"name": "my-authority"},
    }  # fmt: skip
    assert spec["tokens"] == {"secretRef": {"name": "my-tokens"}}
    assert spec["image"] == "registry.example.com/mirror/fairlead/gateway:0.1.0"
    assert spec["pod"]["imagePullSecrets"] == [{"name": "mirror"}]


def test_a_gateway_with_a_certificate_is_tested_over_wss_and_may_read_its_secret(render: Render) -> None:
    objects = render({"gateways": {"default": {"linkTls": {"secretName": "certificate"}}}})
    assert named(objects, "LinkGateway", "fairlead")["spec"]["linkTls"] == {"secretName": "certificate"}
    (test,) = (one for one in of_kind(objects, "Pod") if one["metadata"]["name"] == "fairlead-hello")
    env = {one["name"]: one.get("value") for one in test["spec"]["containers"][0]["env"]}
    assert env["LINK_URL"] == "wss://fairlead-agents.fleet.svc:8080"
    (secrets,) = (
        rule["resourceNames"]
        for rule in named(objects, "Role", "fairlead-operator")["rules"]
        if rule["resources"] == ["secrets"]
    )
    assert "certificate" in secrets


def test_what_the_values_name_for_access_may_be_read_and_mounted(render: Render) -> None:
    given = {
        "roles": {"configMap": "roles"}, "issuers": {"secret": "issuers"}, "eventSinks": {"secret": "sinks"},
        "auditLog": {"claimName": "audit", "keySecretRef": {"name": "signing"}},
        "redis": {"clientTls": {"secretName": "redis-client"}},
        "linkTls": {"secretName": "links", "clientCa": {"secretName": "authority", "crlKey": "crl.pem"}},
        "clonePolicy": "Hold", "trustedProxies": ["10.0.0.0/8"], "linkClientCertHeader": "x-forwarded-client-cert",
    }  # fmt: skip
    certificates = {"links": {"issuerRef": {"name": "ca"}, "dnsNames": ["links.example.com"]}}
    objects = render({"gateways": {"default": given}, "certificates": certificates})
    (secrets,) = (
        rule["resourceNames"]
        for rule in named(objects, "Role", "fairlead-operator")["rules"]
        if rule["resources"] == ["secrets"]
    )
    assert {"issuers", "sinks", "signing", "redis-client", "links", "authority"} <= set(secrets)
    made = named(objects, "LinkGateway", "fairlead")["spec"]
    assert {name: made[name] for name in ("clonePolicy", "trustedProxies", "linkClientCertHeader")} == {
        name: given[name] for name in ("clonePolicy", "trustedProxies", "linkClientCertHeader")
    }
    assert made["linkTls"]["clientCa"]["crlKey"] == "crl.pem"
    env = named(objects, "Deployment", "fairlead-operator")["spec"]["template"]["spec"]["containers"][0]["env"]
    (policy,) = (json.loads(one["value"]) for one in env if one["name"] == "FAIRLEAD_OPERATOR_POLICY")
    assert policy["namespaces"]["fleet"]["volumes"] == ["persistentVolumeClaim"]
    spec = named(objects, "Certificate", "links")["spec"]
    assert (spec["secretName"], spec["dnsNames"]) == ("links", ["links.example.com"])
    assert spec["secretTemplate"]["labels"] == {"fairlead.dev/gateway-secret": "true"}


def test_a_certificate_without_an_issuer_is_refused(helm: Helm, chart: Path) -> None:
    values = {"certificates": {"links": {"dnsNames": ["links.example.com"]}}}
    done = helm("template", "fairlead", str(chart), "--values", "-", stdin=yaml.safe_dump(values))
    assert "certificates.links.issuerRef.name is missing" in done.stderr


@pytest.mark.parametrize(
    "route", [{"ingress": {"hosts": ["a.example"]}}, {"httpRoute": {"parentRefs": [{"name": "g"}]}}]
)
def test_a_route_of_plain_http_to_pods_with_tls_is_refused(helm: Helm, chart: Path, route: dict[str, Any]) -> None:
    values = {"gateways": {"default": {"linkTls": {"secretName": "certificate"}, **route}}}
    done = helm("template", "fairlead", str(chart), "--values", "-", stdin=yaml.safe_dump(values))
    assert done.returncode != 0
    assert f"linkTls needs {next(iter(route))} to be off" in done.stderr


def test_an_older_kubernetes_is_refused(helm: Helm, chart: Path) -> None:
    done = helm("template", "fairlead", str(chart), "--kube-version", "1.29.9")
    assert done.returncode != 0
    assert ">=1.30" in done.stderr


def test_each_gateway_has_a_test_of_its_own(render: Render) -> None:
    tests = [
        one["metadata"]["name"]
        for one in of_kind(render(CI / "two-gateways-values.yaml"), "Pod")
        if one["metadata"]["annotations"]["helm.sh/hook"] == "test"
    ]
    assert sorted(tests) == ["fairlead-emea-hello", "fairlead-hello"]


def test_hooks_are_deleted_when_they_are_done(render: Render) -> None:
    """An uninstall does not delete hooks: each goes when it has done its work, and its rights with it."""
    for one in render():
        annotations = one["metadata"].get("annotations", {})
        if "helm.sh/hook" not in annotations:
            continue
        policy = set(annotations["helm.sh/hook-delete-policy"].split(","))
        assert {"before-hook-creation", "hook-succeeded"} <= policy
        if one["kind"] == "Job":
            assert one["spec"]["ttlSecondsAfterFinished"] <= 3600
        elif one["kind"] != "Pod":
            assert "hook-failed" in policy


def test_the_lease_belongs_to_the_release_and_its_spec_to_the_operator(render: Render) -> None:
    objects = render()
    lease = named(objects, "Lease", "fairlead-operator")
    assert "spec" not in lease
    container = named(objects, "Deployment", "fairlead-operator")["spec"]["template"]["spec"]["containers"][0]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["FAIRLEAD_OPERATOR_LEASE"] == lease["metadata"]["name"]
    assert environment["FAIRLEAD_OPERATOR_NAMESPACES"] == "fleet"


def test_the_test_pod_runs_the_script_as_it_is(render: Render, chart: Path) -> None:
    pod = named(render(), "Pod", "fairlead-hello")["spec"]
    assert pod["containers"][0]["command"][-1].rstrip() == (chart / "files" / "hello.py").read_text().rstrip()


def test_secrets_are_random_and_not_short(render: Render) -> None:
    def values() -> list[str]:
        return [
            base64.b64decode(value).decode()
            for one in of_kind(render(), "Secret")
            for key, value in one["data"].items()
            if key not in ("url", "valkey.conf", "issuer-key")
        ]

    first, second = values(), values()
    assert len(first) == 3
    assert len({*first, *second}) == 6
    assert all(re.fullmatch(r"[A-Za-z0-9]{32,48}", one) for one in first)


def test_notes_show_three_commands_and_warn_about_the_evaluation(helm: Helm, chart: Path, tmp_path: Path) -> None:
    # `helm template` prints no notes, and `helm install --dry-run` asks for a cluster: so a template that shows them.
    copy = shutil.copytree(chart, tmp_path / "fairlead")
    (copy / "templates" / "shown.yaml").write_text(
        '{{ dict "text" (include "fairlead/templates/NOTES.txt" .) | toJson }}'
    )

    def notes(*flags: str) -> str:
        done = helm("template", "fairlead", str(copy), "-s", "templates/shown.yaml", "--namespace", "fleet", *flags)
        assert done.returncode == 0, done.stderr
        text: str = yaml.safe_load(done.stdout)["text"]
        return text

    text = notes()
    assert "kubectl -n fleet wait linkgateway/fairlead --for=condition=Ready" in text
    assert "helm -n fleet test fairlead" in text
    assert "service/fairlead-platform 8081" in text
    assert "get secret fairlead-tokens" in text
    assert "fairlead agents ls" in text
    assert "WARNING" in text
    assert "WARNING" not in notes("--set", "redis.existingSecret=mine")
    assert "Create a LinkGateway" in notes("--set", "gateways.default=null")


def policies(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "NetworkPolicy")}


def test_metrics_and_the_evaluation_valkey_are_open_to_their_users(render: Render) -> None:
    objects = render()
    made = policies(objects)
    assert set(made) == {"fairlead-operator", "fairlead-valkey"}
    monitoring = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    (metrics,) = made["fairlead-operator"]["ingress"]
    assert (metrics["ports"], metrics["from"]) == ([{"port": 8080, "protocol": "TCP"}], monitoring)
    assert named(objects, "LinkGateway", "fairlead")["spec"]["networkPolicy"] == {
        "enabled": True, "metricsFrom": monitoring,
    }  # fmt: skip
    valkey = made["fairlead-valkey"]
    assert set(valkey["policyTypes"]) == {"Ingress", "Egress"}
    assert not valkey.get("egress")
    (redis,) = valkey["ingress"]
    assert redis["ports"] == [{"port": 6379, "protocol": "TCP"}]
    gateway, operator = (peer["podSelector"]["matchLabels"] for peer in redis["from"])
    assert gateway.items() <= Owner("fairlead", "fleet", "u").labels.items(), "the labels that the operator gives pods"
    (pod,) = (meta for name, meta, _ in pods(objects) if name == "fairlead-operator")
    assert operator.items() <= pod["labels"].items()


def test_network_policies_can_be_left_out_or_widened(render: Render) -> None:
    off = render({"networkPolicy": {"enabled": False}})
    assert not policies(off)
    assert named(off, "LinkGateway", "fairlead")["spec"]["networkPolicy"]["enabled"] is False
    peer: dict[str, Any] = {"podSelector": {}}
    made = policies(
        render({"networkPolicy": {"metricsFrom": [], "valkeyFrom": [peer], "operatorEgress": [{"to": [peer]}]}})
    )
    assert made["fairlead-operator"]["ingress"] == []
    assert made["fairlead-operator"]["policyTypes"] == ["Ingress", "Egress"]
    assert made["fairlead-operator"]["egress"][-1] == {"to": [peer]}
    assert made["fairlead-valkey"]["ingress"][0]["from"][-1] == peer


def policies_of(objects: list[dict[str, Any]]) -> Policies:
    (container,) = named(objects, "Deployment", "fairlead-operator")["spec"]["template"]["spec"]["containers"]
    (text,) = (one["value"] for one in container["env"] if one["name"] == "FAIRLEAD_OPERATOR_POLICY")
    return read_policies(text)


@every_set
def test_the_operator_allows_the_gateways_of_its_own_release(render: Render, values: Path) -> None:
    objects = render(values)
    for one in of_kind(objects, "LinkGateway"):
        spec, policy = read_spec(one["spec"]), policies_of(objects).of("fleet")
        assert violations(spec, policy, dict.fromkeys(secrets_to_read(spec, policy), SecretState.UNLABELLED)) == []


def test_the_policy_allows_what_the_values_ask_for_only_in_the_releases_namespace(render: Render) -> None:
    pod = {
        "labels": {"team": "a"}, "annotations": {"a/b": "c"}, "tolerations": [{"key": "spot"}, {"operator": "Exists"}],
        "priorityClassName": "high", "runtimeClassName": "gvisor", "imagePullSecrets": [{"name": "mirror"}],
        "volumes": [{"name": "x", "configMap": {"name": "y"}}, {"name": "z"}],
        "containers": [{"name": "c", "image": "other.test:5000/x/y:1@sha256:" + "0" * 64}],
    }  # fmt: skip
    gateway = {
        "image": "localhost:5000/x:1", "pod": pod, "ingress": {"annotations": {"c/d": ""}},
        "httpRoute": {"parentRefs": [{"name": "p"}], "hostnames": ["h.test"]},
        "services": {"agents": {"type": "LoadBalancer", "annotations": {"e/f": ""}}},
    }  # fmt: skip
    objects = render({"gateways": {"default": gateway}, "operator": {"policy": {"ingressHosts": ["*.all.test"]}}})
    spec = read_spec(named(objects, "LinkGateway", "fairlead")["spec"])
    made = policies_of(objects)
    policy = made.of("fleet")
    states = dict.fromkeys(secrets_to_read(spec, policy), SecretState.UNLABELLED)
    assert violations(spec, policy, states) == []
    assert len(violations(spec, made.of("elsewhere"), {})) == 19
    assert made.all.ingress_hosts == ("*.all.test",)
    assert made.all.images == ("docker.io/fairlead/gateway",)


def test_tokens_outlive_the_release(render: Render) -> None:
    """Agents out there know theirs: another installation must let them in."""
    secret = named(render(), "Secret", "fairlead-tokens")
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_agents_can_enrol_without_a_setting(render: Render) -> None:
    objects = render()
    key = base64.b64decode(named(objects, "Secret", "fairlead-tokens")["data"]["issuer-key"])
    assert len(CredentialIssuer(seed_of_pem(key, "the chart"), "fairlead").public) == 32
    theirs = {"tokens": {"existingSecret": "theirs", "issuerKey": "signing.pem"}}
    spec = named(render(theirs), "LinkGateway", "fairlead")["spec"]
    assert spec["tokens"] == {"secretRef": {"name": "theirs", "issuerKey": "signing.pem"}}


def test_the_chart_works_as_a_dependency_of_another(helm: Helm, chart: Path, tmp_path: Path) -> None:
    (tmp_path / "Chart.yaml").write_text(
        "apiVersion: v2\nname: umbrella\nversion: 0.1.0\ndependencies:\n"
        f"  - {{name: fairlead, version: {__version__}, condition: fairlead.enabled}}\n"
    )
    shutil.copytree(chart, tmp_path / "charts" / "fairlead")
    for enabled, count in (("true", 1), ("false", 0)):
        done = helm("template", "up", str(tmp_path), "--set", f"fairlead.enabled={enabled}")
        assert done.returncode == 0, done.stderr
        assert len(of_kind([one for one in yaml.safe_load_all(done.stdout) if one], "LinkGateway")) == count
