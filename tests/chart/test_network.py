"""Who can connect to whom if the cluster enforces the NetworkPolicies of chart and operator (docs/kubernetes.md,
"Networks").

The pods are those that chart and operator make, with their own labels and ports; the strangers are those of a usual
cluster. `support.chart.network_policy` interprets the objects; the tests at the end of this file check it against the
examples of the Kubernetes documentation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead_operator.api.validation import read_spec
from fairlead_operator.resources.children import children
from fairlead_operator.resources.owner import Owner

from support.chart.helm import Render
from support.chart.manifests import named, pods
from support.chart.network_policy import Pod, connects

LINKS, API, ADMIN, REDIS, METRICS = 8080, 8081, 8082, 6379, 8080
HERE, THERE = "fleet", "shop"

STRANGERS = {
    "ingress controller": Pod("traefik", {"app.kubernetes.io/name": "traefik"}),
    "Prometheus": Pod("monitoring", {"app.kubernetes.io/name": "prometheus"}),
    "neighbour": Pod(HERE, {"app": "debug"}),
    "stranger": Pod(THERE, {"app": "shop"}),
    "impostor": Pod(THERE, Owner("fairlead", THERE, "u").labels),
    "impostor operator": Pod(THERE, {
        "app.kubernetes.io/name": "fairlead", "app.kubernetes.io/instance": "fairlead",
        "app.kubernetes.io/component": "operator",
    }),
}  # fmt: skip
"""The impostors have the labels of a gateway and of the operator, in another namespace."""


class Cluster:
    """The pods and the policies of one release, and of the LinkGateways in it."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        made = [*objects]
        for gateway in (one for one in objects if one["kind"] == "LinkGateway"):
            owner = Owner(gateway["metadata"]["name"], HERE, "u")
            made += children(owner, read_spec(gateway["spec"]))
        self.policies = [one for one in made if one["kind"] == "NetworkPolicy"]
        self.pods = {name: _pod(meta, spec) for name, meta, spec in pods(made)} | STRANGERS

    def reach(self, target: str, port: int) -> set[str]:
        """The pods, by name, that may connect to that port of the target."""
        there = self.pods[target]
        return {
            name for name, pod in self.pods.items() if pod is not there and connects(pod, there, port, self.policies)
        }


def _pod(meta: dict[str, Any], spec: dict[str, Any]) -> Pod:
    ports = {one["name"]: one["containerPort"] for box in spec["containers"] for one in box.get("ports", ())}
    return Pod(HERE, meta["labels"], ports)


@pytest.fixture(scope="module")
def cluster(render: Render) -> Cluster:
    return Cluster(render())


EVERYBODY = {*STRANGERS, "fairlead-operator", "fairlead-valkey", "fairlead", "fairlead-hello", "fairlead-crds"}


def test_every_pod_of_a_release_is_checked(cluster: Cluster) -> None:
    assert set(cluster.pods) == EVERYBODY
    assert {one["metadata"]["name"] for one in cluster.policies} == {
        "fairlead", "fairlead-operator", "fairlead-valkey",
    }  # fmt: skip


def test_links_and_the_api_are_open_to_all_except_valkey_and_valkey_connects_to_nothing(cluster: Cluster) -> None:
    for port in (LINKS, API):
        assert cluster.reach("fairlead", port) == EVERYBODY - {"fairlead", "fairlead-valkey"}


def test_probes_and_metrics_are_open_to_prometheus_only(cluster: Cluster) -> None:
    """And by the kubelet, whose probes no policy stops."""
    assert cluster.reach("fairlead", ADMIN) == {"Prometheus"}
    assert cluster.reach("fairlead-operator", METRICS) == {"Prometheus"}


def test_valkey_is_open_only_to_gateways_and_operator_of_its_namespace(cluster: Cluster) -> None:
    assert cluster.reach("fairlead-valkey", REDIS) == {"fairlead", "fairlead-operator"}


@pytest.mark.parametrize("port", [22, 5000, 9090])
def test_all_other_ports_are_closed(cluster: Cluster, port: int) -> None:
    for target in ("fairlead", "fairlead-operator", "fairlead-valkey"):
        assert cluster.reach(target, port) == set()


def test_without_policies_everything_is_open(render: Render) -> None:
    cluster = Cluster(render({"networkPolicy": {"enabled": False}}))
    assert not cluster.policies
    for target, port in (("fairlead", ADMIN), ("fairlead-operator", METRICS), ("fairlead-valkey", REDIS)):
        assert cluster.reach(target, port) == EVERYBODY - {target}


def test_only_named_peers_are_let_in(render: Render) -> None:
    def of(namespace: str) -> list[dict[str, Any]]:
        return [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]

    own = {"linksFrom": of("traefik"), "platformFrom": [{"podSelector": {"matchLabels": {"app": "debug"}}}]}
    cluster = Cluster(
        render({
            "networkPolicy": {"metricsFrom": [], "valkeyFrom": of(THERE)},
            "gateways": {"default": {"networkPolicy": own}},
        })
    )  # fmt: skip
    assert cluster.reach("fairlead", LINKS) == {"ingress controller"}
    assert cluster.reach("fairlead", API) == {"neighbour"}
    assert cluster.reach("fairlead", ADMIN) == cluster.reach("fairlead-operator", METRICS) == set()
    assert cluster.reach("fairlead-valkey", REDIS) == {
        "fairlead", "fairlead-operator", "stranger", "impostor", "impostor operator",
    }  # fmt: skip


def test_with_egress_gateways_and_operator_connect_only_to_named_peers_and_dns(render: Render) -> None:
    redis = [{"ports": [{"port": REDIS}], "to": [{"podSelector": {"matchLabels": {"app": "redis"}}}]}]
    cluster = Cluster(
        render({
            "networkPolicy": {"operatorEgress": redis},
            "gateways": {"default": {"networkPolicy": {"egress": redis}}},
        })
    )  # fmt: skip
    server, resolver = Pod(HERE, {"app": "redis"}), Pod("kube-system", {"k8s-app": "kube-dns"})
    for name in ("fairlead", "fairlead-operator"):
        pod = cluster.pods[name]
        assert connects(pod, server, REDIS, cluster.policies)
        assert not connects(pod, server, 22, cluster.policies)
        assert not connects(pod, replace(server, namespace=THERE), REDIS, cluster.policies)
        assert not connects(pod, cluster.pods["stranger"], 80, cluster.policies)
        assert connects(pod, resolver, 53, cluster.policies, "UDP")
        assert connects(pod, resolver, 53, cluster.policies)
    assert not connects(cluster.pods["fairlead-valkey"], resolver, 53, cluster.policies, "UDP")


DOCUMENTED = {
    "metadata": {"name": "test-network-policy", "namespace": "default"},
    "spec": {
        "podSelector": {"matchLabels": {"role": "db"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{
            "from": [
                {"ipBlock": {"cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"]}},
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "myproject"}}},
                {"podSelector": {"matchLabels": {"role": "frontend"}}},
            ],
            "ports": [{"protocol": "TCP", "port": 6379}],
        }],
        "egress": [{
            "to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}], "ports": [{"protocol": "TCP", "port": 5978}],
        }],
    },
}  # fmt: skip
"""The example of the page «Network Policies» of kubernetes.io."""
DB = Pod("default", {"role": "db"}, {"redis": 6379})


@pytest.mark.parametrize(
    ("source", "port", "allowed"),
    [
        (Pod("default", {"role": "frontend"}), 6379, True),
        (Pod("default", {"role": "frontend"}), 6380, False),
        (Pod("default", {"role": "backend"}), 6379, False),
        (Pod("other", {"role": "frontend"}), 6379, False),
        (Pod("myproject", {}), 6379, True),
        (Pod("other", {}, address="172.17.0.9"), 6379, True),
        (Pod("other", {}, address="172.17.1.9"), 6379, False),
    ],
)
def test_the_documented_policy_means_what_its_page_says_of_ingress(source: Pod, port: int, allowed: bool) -> None:
    assert connects(source, DB, port, [DOCUMENTED]) is allowed
    assert not connects(source, DB, port, [DOCUMENTED], "UDP")


def test_the_documented_policy_means_what_its_page_says_of_egress() -> None:
    assert connects(DB, Pod("other", {}, address="10.0.0.7"), 5978, [DOCUMENTED])
    assert not connects(DB, Pod("other", {}, address="10.0.0.7"), 5979, [DOCUMENTED])
    assert not connects(DB, Pod("other", {}, address="10.0.1.7"), 5978, [DOCUMENTED])


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"podSelector": {}}, False),  # deny all: isolated, and no rule
        ({"podSelector": {}, "ingress": [{}]}, True),  # allow all
        ({"podSelector": {}, "ingress": [{"from": []}]}, True),
        ({"podSelector": {}, "policyTypes": ["Egress"]}, True),  # no policy of ingress selects it
        ({"podSelector": {"matchLabels": {"role": "web"}}}, True),
        ({"podSelector": {}, "ingress": [{"ports": [{"port": "redis"}]}]}, True),
        ({"podSelector": {}, "ingress": [{"ports": [{"port": "web"}]}]}, False),
        ({"podSelector": {}, "ingress": [{"ports": [{"port": 6000, "endPort": 7000}]}]}, True),
        ({"podSelector": {}, "ingress": [{"ports": [{"protocol": "TCP"}]}]}, True),
        ({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}, True),
        ({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}, False),  # of the policy's own namespace
        (
            {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}, "podSelector": {
                "matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}],
            }}]}]},
            True,
        ),
        (
            {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}, "podSelector": {
                "matchExpressions": [{"key": "app", "operator": "DoesNotExist"}],
            }}]}]},
            False,
        ),
    ],
)  # fmt: skip
def test_omitted_fields_of_a_policy_mean_what_the_reference_says(spec: dict[str, Any], allowed: bool) -> None:
    policy = {"metadata": {"name": "one", "namespace": "default"}, "spec": spec}
    assert connects(Pod("other", {"app": "a"}), DB, 6379, [policy]) is allowed


def test_the_rules_of_several_policies_add_up() -> None:
    closed = {"metadata": {"name": "closed", "namespace": "default"}, "spec": {"podSelector": {}}}
    assert connects(Pod("myproject", {}), DB, 6379, [closed, DOCUMENTED])
    assert not connects(Pod("myproject", {}), DB, 6379, [closed])


def test_the_peers_of_metrics_are_set_for_operator_and_gateways(render: Render) -> None:
    peer = {"podSelector": {"matchLabels": {"app": "debug"}}}
    objects = render({"networkPolicy": {"metricsFrom": [peer]}})
    assert named(objects, "LinkGateway", "fairlead")["spec"]["networkPolicy"]["metricsFrom"] == [peer]
    cluster = Cluster(objects)
    assert cluster.reach("fairlead", ADMIN) == cluster.reach("fairlead-operator", METRICS) == {"neighbour"}
