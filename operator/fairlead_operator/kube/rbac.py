"""The rights of the operator in the cluster. A test checks that the chart's Roles contain exactly these.

Each entry has an API group, resources and verbs. NAMESPACED is needed in each namespace with LinkGateways, LEASE in the
operator's own. NODES and INGRESS_CLASSES cannot be granted by a Role, and the operator works without them: the
condition NodesReadable then says what is unknown, and IngressClassFound is not set.
"""

from __future__ import annotations

PolicyRule = tuple[str, tuple[str, ...], tuple[str, ...]]

_APPLIED = ("get", "create", "patch")
_REMOVABLE = (*_APPLIED, "delete")

NAMESPACED: tuple[PolicyRule, ...] = (
    ("fairlead.dev", ("linkgateways",), ("get", "list", "watch")),
    ("fairlead.dev", ("linkoperations",), ("get", "list", "watch", "patch", "delete")),
    ("fairlead.dev", ("linkgateways/status", "linkoperations/status"), ("patch",)),
    ("apps", ("deployments",), _APPLIED),
    ("apps", ("replicasets",), ("list",)),
    ("apps", ("controllerrevisions",), ("list", "create", "patch", "delete")),
    ("apps", ("deployments/scale",), ("get", "patch")),
    ("", ("services", "serviceaccounts"), _APPLIED),
    ("", ("pods",), ("list", "patch")),
    ("", ("pods/eviction",), ("create",)),
    ("", ("secrets",), ("get",)),
    ("", ("events",), ("create",)),
    ("policy", ("poddisruptionbudgets",), _APPLIED),
    ("networking.k8s.io", ("ingresses", "networkpolicies"), _REMOVABLE),
    ("gateway.networking.k8s.io", ("httproutes",), _REMOVABLE),
)
LEASE: tuple[PolicyRule, ...] = (("coordination.k8s.io", ("leases",), ("get", "create", "patch")),)
NODES: tuple[PolicyRule, ...] = (("", ("nodes",), ("get",)),)
INGRESS_CLASSES: tuple[PolicyRule, ...] = (("networking.k8s.io", ("ingressclasses",), ("get",)),)
CLUSTER = (*NODES, *INGRESS_CLASSES)
UPGRADE: tuple[PolicyRule, ...] = (
    ("apiextensions.k8s.io", ("customresourcedefinitions",), ("get", "create", "patch")),
)
"""The rights of the job that applies the CRDs at an upgrade of the chart; the operator does not need them."""

PERMISSIONS = (*NAMESPACED, *LEASE, *CLUSTER)
