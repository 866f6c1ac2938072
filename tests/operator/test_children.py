"""The child objects of a spec, without a cluster: presets, environment, and what must be absent."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.settings.table import SETTINGS
from fairlead_operator.api.validation import RESERVED_ENV, RESERVED_NAMES, read_spec
from fairlead_operator.kube.objects import Object
from fairlead_operator.resources.children import children
from fairlead_operator.resources.owner import Owner

OWNER = Owner("edge", "fleet", "1f0c")
LEAST: dict[str, Any] = {
    "image": "gateway:1", "redis": {"url": "redis://r"}, "tokens": {"secretRef": {"name": "tokens"}},
}  # fmt: skip


def made(**more: object) -> dict[tuple[str, str], Object]:
    return {(body["kind"], body["metadata"]["name"]): body for body in children(OWNER, read_spec(LEAST | more))}


def container(**more: object) -> Object:
    found: Object = made(**more)["Deployment", "edge"]["spec"]["template"]["spec"]["containers"][0]
    return found


def test_deployment_has_no_replicas() -> None:
    assert "replicas" not in made()["Deployment", "edge"]["spec"]


def variables(**more: object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(**more)["env"] if "value" in one}


def test_the_shared_token_opens_links_only_where_nobody_can_enrol_or_the_author_says_so() -> None:
    enrolling = {"tokens": {"secretRef": {"name": "t", "issuerKey": "k"}}}
    required, shared = "FAIRLEAD_REQUIRE_IDENTITY", "FAIRLEAD_INSECURE_SHARED_TOKEN"
    for more, name in (
        ({}, shared), (enrolling, required), ({**enrolling, "requireIdentity": False}, shared),
        ({**enrolling, "requireIdentity": True}, required),
    ):  # fmt: skip
        found = variables(**more)
        assert {key: value for key, value in found.items() if key in (required, shared)} == {name: "true"}


def test_deployment_by_default_adds_all_new_pods_before_it_removes_one() -> None:
    spec = made()["Deployment", "edge"]["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": "100%", "maxUnavailable": 0}
    assert spec["minReadySeconds"] == 30


@pytest.mark.parametrize(
    ("capacity", "more", "grace", "delay"),
    [
        (10_000, {}, 190, "10"), (1, {}, 91, "10"), (18_000, {"acceptRate": 1_000}, 180, "10"),
        (1_000, {"moves": {"maxPerSecond": 10}}, 190, "10"), (1, {"drain": {"shutdownDelaySeconds": 0}}, 91, "0"),
        (100, {"drain": {"shutdownDelaySeconds": 90}}, 120, "90"),
    ],
)  # fmt: skip
def test_grace_period_is_the_longer_of_drain_and_delay_plus_the_stop(
    capacity: int, more: dict[str, Any], grace: int, delay: str
) -> None:
    pod = made(capacity=capacity, **more)["Deployment", "edge"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == grace
    assert {"name": "FAIRLEAD_SHUTDOWN_DELAY", "value": delay} in pod["containers"][0]["env"]
    assert "lifecycle" not in pod["containers"][0]


def test_deployment_reads_the_redis_password_from_its_secret() -> None:
    more = {"redis": {"secretRef": {"name": "where", "key": "address"}, "caSecretRef": {"name": "authority"}}}
    pod = made(**more)["Deployment", "edge"]["spec"]["template"]["spec"]
    env = container(**more)["env"]
    assert {"name": "FAIRLEAD_REDIS_FILE", "value": "/etc/fairlead/redis/url"} in env
    assert {"name": "FAIRLEAD_REDIS_CA_FILE", "value": "/etc/fairlead/redis/ca.crt"} in env
    assert {"name": "redis", "mountPath": "/etc/fairlead/redis", "readOnly": True} in container(**more)["volumeMounts"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "redis")
    assert volume["projected"]["sources"] == [
        {"secret": {"name": "where", "items": [{"key": "address", "path": "url"}]}},
        {"secret": {"name": "authority", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    assert {one["name"] for one in env if "valueFrom" in one} == {
        f"FAIRLEAD_{n}" for n in ("NODE", "POD_UID", "REVISION")
    }
    assert not [one for one in env if one["name"] in ("FAIRLEAD_AGENT_TOKEN", "FAIRLEAD_PLATFORM_TOKEN")]


ACCESS: dict[str, Any] = {
    "roles": {"configMap": "roles"},
    "issuers": {"secret": "issuers", "key": "ours.toml"},
    "eventSinks": {"secret": "sinks"},
    "auditLog": {"claimName": "audit", "keySecretRef": {"name": "signing"}, "otlpEndpoint": "http://collector:4318"},
    "terminalRecordings": {"sizeLimit": "2Gi"},
    "redis": {"url": "rediss://r", "clientTls": {"secretName": "redis-client"}},
    "linkTls": {
        "secretName": "certificate",
        "clientCa": {"secretName": "authority", "auth": "Optional", "crlKey": "revoked.pem"},
    },
    "ingress": {"enabled": False},
    "clonePolicy": "Hold",
    "trustedProxies": ["10.244.0.0/16", "fd00::1"],
    "linkClientCertHeader": "ssl-client-cert",
}


def test_access_and_evidence_are_mounted_and_named_by_settings_that_the_gateway_has() -> None:
    found = variables(**ACCESS)
    expected = {
        "FAIRLEAD_ROLES": "/etc/fairlead/roles/roles.yaml",
        "FAIRLEAD_ISSUERS": "/etc/fairlead/issuers/ours.toml",
        "FAIRLEAD_EVENT_SINKS": "/etc/fairlead/event-sinks/sinks.toml",
        "FAIRLEAD_AUDIT_LOG": "/var/lib/fairlead/audit",
        "FAIRLEAD_AUDIT_KEY": "/etc/fairlead/audit-key/key.pem",
        "FAIRLEAD_AUDIT_ENDPOINT": "http://collector:4318",
        "FAIRLEAD_TERMINAL_RECORDINGS": "/var/lib/fairlead/terminals",
        "FAIRLEAD_REDIS_CERT_FILE": "/etc/fairlead/redis/tls.crt",
        "FAIRLEAD_REDIS_KEY_FILE": "/etc/fairlead/redis/tls.key",
        "FAIRLEAD_LINK_TLS_CLIENT_CA": "/etc/fairlead/link-client-ca/ca.crt",
        "FAIRLEAD_LINK_TLS_CLIENT_AUTH": "optional",
        "FAIRLEAD_LINK_TLS_CLIENT_CRL": "/etc/fairlead/link-client-ca/crl.pem",
        "FAIRLEAD_CLONE_POLICY": "hold",
        "FAIRLEAD_TRUSTED_PROXIES": "10.244.0.0/16,fd00::1",
        "FAIRLEAD_LINK_CLIENT_CERT_HEADER": "ssl-client-cert",
    }
    assert {name: found[name] for name in expected} == expected
    for name in expected:
        setting = SETTINGS[name.removeprefix("FAIRLEAD_").lower()]
        setting.parse(expected[name])
        assert name in RESERVED_ENV
    pod = made(**ACCESS)["Deployment", "edge"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["roles"]["configMap"]["name"] == "roles"
    assert volumes["issuers"]["secret"]["secretName"] == "issuers"
    assert volumes["event-sinks"]["secret"]["secretName"] == "sinks"
    assert volumes["link-client-ca"]["secret"]["items"] == [
        {"key": "ca.crt", "path": "ca.crt"}, {"key": "revoked.pem", "path": "crl.pem"},
    ]  # fmt: skip
    assert volumes["audit"]["persistentVolumeClaim"] == {"claimName": "audit"}
    assert volumes["terminals"]["emptyDir"] == {"sizeLimit": "2Gi"}
    mounts = {mount["name"]: mount for mount in container(**ACCESS)["volumeMounts"]}
    assert mounts.keys() == volumes.keys() <= RESERVED_NAMES["volumes"]
    assert {name for name, mount in mounts.items() if not mount.get("readOnly")} == {"audit", "terminals"}


def test_pods_with_an_issuer_key_enrol_agents() -> None:
    assert not [one for one in container()["env"] if one["name"] == "FAIRLEAD_ISSUER_KEY"]
    more = {"tokens": {"secretRef": {"name": "theirs", "issuerKey": "issuer-key"}}}
    pod = made(**more)["Deployment", "edge"]["spec"]["template"]["spec"]
    assert {"name": "FAIRLEAD_ISSUER_KEY", "value": "/etc/fairlead/tokens/issuer.pem"} in container(**more)["env"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "tokens")
    assert volume["secret"]["secretName"] == "theirs"
    assert {"key": "issuer-key", "path": "issuer.pem"} in volume["secret"]["items"]


def test_pods_with_a_certificate_serve_links_with_tls() -> None:
    more = {"linkTls": {"secretName": "certificate"}, "ingress": {"enabled": False}}
    found = made(**more)
    pod = found["Deployment", "edge"]["spec"]["template"]["spec"]
    env = {one["name"]: one.get("value") for one in container(**more)["env"]}
    assert env["FAIRLEAD_LINK_TLS_CERT"] == "/etc/fairlead/link-tls/tls.crt"
    assert env["FAIRLEAD_LINK_TLS_KEY"] == "/etc/fairlead/link-tls/tls.key"
    mounted = {"name": "link-tls", "mountPath": "/etc/fairlead/link-tls", "readOnly": True}
    assert mounted in container(**more)["volumeMounts"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "link-tls")
    assert volume["secret"]["secretName"] == "certificate"
    assert {one["key"] for one in volume["secret"]["items"]} == {"tls.crt", "tls.key"}
    (port,) = found["Service", "edge-agents"]["spec"]["ports"]
    assert (port["name"], port["appProtocol"]) == ("wss", "kubernetes.io/wss")
    assert ("Ingress", "edge") not in found


def test_env_of_the_author_comes_after_that_of_the_operator() -> None:
    env = container(pod={"env": [{"name": "FAIRLEAD_WINDOW", "value": "131072"}, {"name": "MORE", "value": "1"}]})[
        "env"
    ]
    assert env[-2:] == [{"name": "FAIRLEAD_WINDOW", "value": "131072"}, {"name": "MORE", "value": "1"}]
    assert env[:-2] == container()["env"]


def test_env_that_the_operator_sets_is_refused_with_what_to_set_instead() -> None:
    ours = container(telemetry={"otlpEndpoint": "http://collector:4318"})["env"]
    assert {one["name"] for one in ours} <= set(RESERVED_ENV)
    assert set(RESERVED_ENV) <= {f"FAIRLEAD_{name.upper()}" for name in SETTINGS}
    for name, instead in RESERVED_ENV.items():
        with pytest.raises(ConfigError, match=re.escape(f"pod.env must not set {name}: {instead}")):
            read_spec(LEAST | {"pod": {"env": [{"name": name, "value": "1"}]}})


def test_env_of_other_gateway_settings_is_allowed() -> None:
    names = sorted({f"FAIRLEAD_{name.upper()}" for name in SETTINGS} - set(RESERVED_ENV))
    assert {"FAIRLEAD_TRACE_RATIO", "FAIRLEAD_HEARTBEAT", "FAIRLEAD_RETENTION"} <= set(names)
    env = container(pod={"env": [{"name": name, "value": "1"} for name in names]})["env"]
    assert [one["name"] for one in env[-len(names) :]] == names


def test_env_has_the_name_the_uid_and_the_revision_of_the_pod() -> None:
    sources = {one["name"]: one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for one in container()["env"]}
    assert (sources["FAIRLEAD_NODE"], sources["FAIRLEAD_POD_UID"]) == ("metadata.name", "metadata.uid")
    assert sources["FAIRLEAD_REVISION"] == "metadata.labels['pod-template-hash']"


@pytest.mark.parametrize(("asked", "seconds"), [({}, 2_592_000), ({"forgetAfterSeconds": 0}, 0)])
def test_env_has_the_time_after_which_agents_are_forgotten(asked: dict[str, int], seconds: int) -> None:
    assert {"name": "FAIRLEAD_FORGET_AFTER", "value": str(seconds)} in container(**asked)["env"]


@pytest.mark.parametrize("wrong", [-1, 10 * 366 * 86_400 + 1, 1.5, "30d"])
def test_forget_after_must_be_a_number_of_seconds(wrong: object) -> None:
    with pytest.raises(ConfigError, match="forgetAfterSeconds"):
        read_spec(LEAST | {"forgetAfterSeconds": wrong})


def test_pod_is_read_only_and_has_no_token() -> None:
    """The API server checks the rest of Pod Security: the namespaces of the other tests enforce it."""
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
    assert container()["volumeMounts"] == [{"name": "tokens", "mountPath": "/etc/fairlead/tokens", "readOnly": True}]
    assert made()["Deployment", "edge"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_pod_labels_of_the_author_cannot_change_the_selector() -> None:
    spec = made(pod={"labels": {"fairlead.dev/gateway": "another", "team": "a"}})["Deployment", "edge"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert labels["team"] == "a"


def test_ingress_routes_only_links_unless_the_platform_is_asked_for() -> None:
    def paths(**more: object) -> list[tuple[str, str]]:
        (rule,) = made(ingress=more)["Ingress", "edge"]["spec"]["rules"]
        return [(one["path"], one["backend"]["service"]["name"]) for one in rule["http"]["paths"]]

    agents = [(path, "edge-agents") for path in ("/v1/link", "/v1/enrolments", "/v1/renewals")]
    assert paths() == agents
    assert paths(platform=True) == [*agents, ("/v1", "edge-platform")]
    assert ("Ingress", "edge") not in made()
    assert ("Ingress", "edge") not in made(ingress={"enabled": False})


@pytest.mark.parametrize(
    ("preset", "annotation", "value"),
    [
        ("Nginx", "nginx.org/websocket-services", "edge-agents"),
        ("Nginx", "nginx.ingress.kubernetes.io/proxy-read-timeout", "3600"),
        ("HAProxy", "haproxy.org/load-balance", "leastconn"),
        ("Traefik", "traefik.ingress.kubernetes.io/router.tls", "true"),
    ],
)
def test_ingress_preset_sets_its_annotations(preset: str, annotation: str, value: str) -> None:
    body = made(ingress={"preset": preset, "tls": {"secretName": "cert"}, "hosts": ["a.test"]})["Ingress", "edge"]
    assert body["metadata"]["annotations"][annotation] == value
    assert body["spec"]["tls"] == [{"hosts": ["a.test"], "secretName": "cert"}]
    mine = made(ingress={"preset": preset, "annotations": {annotation: "mine"}})["Ingress", "edge"]
    assert mine["metadata"]["annotations"][annotation] == "mine"


def test_haproxy_preset_sets_the_connection_limit_of_a_pod() -> None:
    service = made(capacity=9000, ingress={"preset": "HAProxy"})["Service", "edge-agents"]
    assert service["metadata"]["annotations"] == {"haproxy.org/pod-maxconn": "9000"}
    assert made()["Service", "edge-agents"]["metadata"]["annotations"] == {}


def test_http_route_has_no_timeouts() -> None:
    body = made(httpRoute={"parentRefs": [{"name": "front"}], "hostnames": ["a.test"]})["HTTPRoute", "edge"]
    (rule,) = body["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert rule["backendRefs"] == [{"name": "edge-agents", "port": 8080}]


def test_agents_service_declares_websockets() -> None:
    (port,) = made()["Service", "edge-agents"]["spec"]["ports"]
    assert port["appProtocol"] == "kubernetes.io/ws"


def test_ingress_hosts_have_the_same_paths() -> None:
    spec = made(ingress={"hosts": ["a.test", "*.b.test"], "tls": {"secretName": "cert"}})["Ingress", "edge"]["spec"]
    assert [rule["host"] for rule in spec["rules"]] == ["a.test", "*.b.test"]
    assert spec["rules"][0]["http"] == spec["rules"][1]["http"]
    assert spec["tls"] == [{"hosts": ["a.test", "*.b.test"], "secretName": "cert"}]


def test_service_may_be_a_load_balancer() -> None:
    asked = {"type": "LoadBalancer", "annotations": {"a": "b"}, "externalTrafficPolicy": "Local"}
    services = made(services={"agents": asked})
    agents = services["Service", "edge-agents"]
    assert agents["metadata"]["annotations"] == {"a": "b"}
    assert (agents["spec"]["type"], agents["spec"]["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    assert services["Service", "edge-platform"]["spec"]["type"] == "ClusterIP"
    assert "externalTrafficPolicy" not in services["Service", "edge-platform"]["spec"]


def test_network_policy_opens_metrics_only_to_the_named_peers() -> None:
    def ports(policy: Object) -> dict[int, Any]:
        return {rule["ports"][0]["port"]: rule.get("from") for rule in policy["spec"]["ingress"]}

    policy = made()["NetworkPolicy", "edge"]
    assert ports(policy) == {8080: None, 8081: None}, "on by default, and the admin port is for probes alone"
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    peers: list[Any] = [{"namespaceSelector": {}}]
    policy = made(networkPolicy={"metricsFrom": peers, "egress": [{"to": peers}]})["NetworkPolicy", "edge"]
    assert ports(policy) == {8080: None, 8081: None, 8082: peers}
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    dns, redis = policy["spec"]["egress"]
    assert ({port["port"] for port in dns["ports"]}, redis) == ({53}, {"to": peers})
    assert ("NetworkPolicy", "edge") not in made(networkPolicy={"enabled": False})


def test_pod_has_the_authors_additions_besides_the_operators_parts() -> None:
    mount = {"name": "more", "mountPath": "/more"}
    pod = made(
        pod={
            "volumes": [{"name": "more", "emptyDir": {}}], "volumeMounts": [mount],
            "containers": [{"name": "beside", "image": "i"}], "initContainers": [{"name": "before", "image": "i"}],
            "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
            "probes": {"liveness": {"periodSeconds": 30, "failureThreshold": 5}},
        }
    )["Deployment", "edge"]["spec"]["template"]["spec"]  # fmt: skip
    gateway, beside = pod["containers"]
    assert (gateway["name"], beside["name"]) == ("gateway", "beside")
    assert pod["initContainers"] == [{"name": "before", "image": "i"}]
    assert [one["name"] for one in pod["volumes"]] == ["tokens", "more"]
    assert gateway["volumeMounts"][-1] == mount
    assert gateway["lifecycle"] == {"preStop": {"sleep": {"seconds": 1}}}
    liveness = gateway["livenessProbe"]
    assert (liveness["periodSeconds"], liveness["failureThreshold"], liveness["timeoutSeconds"]) == (30, 5, 2)
    assert liveness["httpGet"]["path"] == "/livez"


def test_pod_template_changes_with_the_checksum_of_the_secrets() -> None:
    def template(secrets: str) -> Any:
        (body,) = (one for one in children(OWNER, read_spec(LEAST), secrets) if one["kind"] == "Deployment")
        return body["spec"]["template"]["metadata"]["annotations"]

    assert template("") == {}
    assert template("1f") == {"fairlead.dev/secrets": "1f"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"resources": {"requests": {"cpu": "banana"}}}, "resources.requests.cpu: 'banana' is not a quantity"),
        ({"resources": {"limits": {"memory": "1GiB"}}}, "resources.limits.memory: '1GiB' is not a quantity"),
        ({"resources": {"limits": {"memory": True}}}, "resources.limits.memory: 'True' is not a quantity"),
        ({"rollingUpdate": {"maxSurge": "some"}}, "rollingUpdate.maxSurge: 'some' is neither"),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}, "no pod could ever be replaced"),
        ({"pod": {"containers": [{"name": "gateway"}]}}, "pod.containers: the name gateway is reserved"),
        ({"pod": {"volumes": [{"name": "tokens"}]}}, "pod.volumes: the name tokens is reserved"),
        (
            {"pod": {"volumeMounts": [{"name": "x", "mountPath": "/etc/fairlead/tokens/"}]}},
            "mounts Secrets and folders",
        ),
        (
            {"pod": {"volumeMounts": [{"name": "x", "mountPath": "//etc/./x/../fairlead//roles"}]}},
            "mounts Secrets and folders",
        ),
        ({"pod": {"volumeMounts": [{"name": "x", "mountPath": "var/lib/fairlead"}]}}, "mounts Secrets and folders"),
        ({"redis": {"url": "redis://r", "caSecretRef": {"name": "ca"}}}, "needs a rediss:// URL"),
        ({"redis": {"url": "redis://:word@r"}}, "redis.url"),
        ({"roles": {}}, "roles, issuers and eventSinks need exactly one of configMap and secret"),
        ({"issuers": {"configMap": "a", "secret": "b"}}, "roles, issuers and eventSinks need exactly one of configMap"),
        ({"eventSinks": {"configMap": "a", "secret": "b"}}, "roles, issuers and eventSinks need exactly one of"),
        ({"redis": {"url": "redis://r", "clientTls": {"secretName": "c"}}}, "redis.clientTls needs a rediss:// URL"),
        ({"requireIdentity": True}, "requireIdentity needs tokens.secretRef.issuerKey"),
        ({"linkClientCertHeader": "ssl-client-cert"}, "linkClientCertHeader needs trustedProxies"),
        ({"linkTls": {"secretName": "c"}, "ingress": {}}, "linkTls needs ingress and httpRoute to be off"),
        ({"linkTls": {"secretName": "c"}, "httpRoute": {"parentRefs": [{"name": "g"}]}}, "linkTls needs ingress"),
    ],
)
def test_spec_that_kubernetes_or_the_pods_would_refuse_is_refused(more: Object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_spec(LEAST | more)


@pytest.mark.parametrize("amount", [1, "1", "500m", "1.5", ".5", "1Gi", "2e3", "2E3", "100k"])
def test_quantities_that_kubernetes_accepts_are_accepted(amount: str | int | float) -> None:
    assert container(resources={"limits": {"cpu": amount}})["resources"] == {"limits": {"cpu": amount}}
