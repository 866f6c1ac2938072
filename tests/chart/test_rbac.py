"""The chart's Roles grant exactly the rights in the operator's table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fairlead_operator.kube import rbac

from support.chart.helm import Render

CI = Path(__file__).resolve().parents[2] / "charts" / "fairlead" / "ci"

Right = tuple[str, str, str]


def asked(*tables: Iterable[rbac.PolicyRule]) -> set[Right]:
    """Group, resource and verb, one by one."""
    return {
        (group, resource, verb)
        for table in tables
        for group, resources, verbs in table
        for resource in resources
        for verb in verbs
    }


def granted(role: dict[str, Any]) -> set[Right]:
    rights = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert not any("*" in right for right in rights), role["metadata"]["name"]
    return rights


def roles(objects: list[dict[str, Any]], kind: str = "Role") -> dict[tuple[str, str], dict[str, Any]]:
    """By namespace and name."""
    return {
        (one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in objects if one["kind"] == kind
    }


def names(role: dict[str, Any], resource: str) -> list[list[str] | None]:
    """What each rule on `resource` is bound to; None is any."""
    return [rule.get("resourceNames") for rule in role["rules"] if resource in rule["resources"]]


def test_a_namespace_gets_a_role_with_exactly_the_rights_in_use(render: Render) -> None:
    objects = render()
    made = roles(objects)
    assert set(made) == {("fleet", "fairlead-operator"), ("fleet", "fairlead-operator-lease")}
    assert granted(made["fleet", "fairlead-operator"]) == asked(rbac.NAMESPACED)
    assert granted(made["fleet", "fairlead-operator-lease"]) == asked(rbac.LEASE)
    assert names(made["fleet", "fairlead-operator"], "secrets") == [["fairlead-tokens", "fairlead-valkey"]]
    # The right to create cannot be bound to a name.
    assert names(made["fleet", "fairlead-operator-lease"], "leases") == [None, ["fairlead-operator"]]


def test_a_default_release_may_only_read_nodes_in_the_cluster_except_during_an_upgrade(render: Render) -> None:
    made = roles(render(), "ClusterRole")
    assert set(made) == {("", "fleet-fairlead-operator"), ("", "fleet-fairlead-crds")}
    assert granted(made["", "fleet-fairlead-operator"]) == asked(rbac.NODES)
    role = made["", "fleet-fairlead-crds"]
    assert role["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert granted(role) == asked(rbac.UPGRADE)
    ours = ["linkgateways.fairlead.dev", "linkoperations.fairlead.dev"]
    assert names(role, "customresourcedefinitions") == [ours, None]


def test_each_namespace_gets_a_role_that_reads_only_the_named_secrets(render: Render) -> None:
    made = roles(render(CI / "two-gateways-values.yaml"))
    assert set(made) == {
        ("fleet", "fairlead-operator"), ("elsewhere", "fairlead-operator"), ("fleet", "fairlead-operator-lease"),
    }  # fmt: skip
    assert names(made["fleet", "fairlead-operator"], "secrets") == [
        ["emea-redis", "fairlead-tokens", "fairlead-valkey", "further-redis"]
    ]
    assert names(made["elsewhere", "fairlead-operator"], "secrets") == [["further-redis"]]


def test_without_names_no_secret_may_be_read(render: Render) -> None:
    made = roles(render({"operator": {"namespaces": ["fleet", "elsewhere"]}}))
    assert names(made["elsewhere", "fairlead-operator"], "secrets") == []
    assert names(made["fleet", "fairlead-operator"], "secrets") == [["fairlead-tokens", "fairlead-valkey"]]


def test_all_namespaces_get_one_cluster_role(render: Render) -> None:
    objects = render(CI / "cluster-scope-values.yaml")
    assert set(roles(objects)) == {("fleet", "fairlead-operator-lease")}
    role = roles(objects, "ClusterRole")["", "fleet-fairlead-operator"]
    assert granted(role) == asked(rbac.NAMESPACED, rbac.CLUSTER)


@pytest.mark.parametrize(
    ("values", "rights"),
    [
        ({"nodes": False}, ()),
        ({"nodes": False, "ingressClasses": True}, rbac.INGRESS_CLASSES),
        ({"ingressClasses": True}, rbac.CLUSTER),
    ],
)
def test_reading_nodes_and_ingress_classes_are_separate_rights(
    render: Render, values: dict[str, bool], rights: tuple[rbac.PolicyRule, ...]
) -> None:
    objects = render({"operator": {"rbac": values}})
    made = roles(objects, "ClusterRole").get(("", "fleet-fairlead-operator"), {"rules": [], "metadata": {"name": ""}})
    assert granted(made) == asked(rights)
    assert granted(roles(objects)["fleet", "fairlead-operator"]) == asked(rbac.NAMESPACED)


@pytest.mark.parametrize("values", sorted(CI.glob("*-values.yaml")), ids=lambda path: path.name)
def test_each_binding_binds_our_role_to_our_service_account(render: Render, values: Path) -> None:
    objects = render(values)
    have = {*roles(objects), *roles(objects, "ClusterRole")}
    bound = set()
    for one in objects:
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            ref = one["roleRef"]
            assert ref["kind"] == one["kind"].removesuffix("Binding")
            bound.add((one["metadata"].get("namespace", ""), ref["name"]))
            (subject,) = one["subjects"]
            assert subject["name"] in ("fairlead-operator", "fairlead-crds")
            assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", "fleet")
    assert bound == have
