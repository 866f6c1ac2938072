"""What the operator may do in the cluster, and nothing more: the chart's Roles are tested against this table.

(API group, resources, verbs). Those of NAMESPACED are needed in each namespace that is looked after, LEASE in the
operator's own, CLUSTER cannot be had in a namespace: without it a condition says that the IngressClass is not known.
"""

from __future__ import annotations

Rule = tuple[str, tuple[str, ...], tuple[str, ...]]

_KEPT = ("get", "create", "patch")
_OPTIONAL = (*_KEPT, "delete")

NAMESPACED: tuple[Rule, ...] = (
    ("fairlead.dev", ("linkgateways",), ("get", "list", "watch")),
    ("fairlead.dev", ("linkoperations",), ("get", "list", "watch", "patch")),
    ("fairlead.dev", ("linkgateways/status", "linkoperations/status"), ("patch",)),
    ("apps", ("deployments",), _KEPT),
    ("apps", ("deployments/scale",), ("get", "patch")),
    ("", ("services", "serviceaccounts"), _KEPT),
    ("", ("pods",), ("list", "patch")),
    ("", ("pods/eviction",), ("create",)),
    ("", ("secrets",), ("get",)),
    ("", ("events",), ("create",)),
    ("policy", ("poddisruptionbudgets",), _KEPT),
    ("networking.k8s.io", ("ingresses", "networkpolicies"), _OPTIONAL),
    ("gateway.networking.k8s.io", ("httproutes",), _OPTIONAL),
)
LEASE: tuple[Rule, ...] = (("coordination.k8s.io", ("leases",), ("get", "create", "patch")),)
CLUSTER: tuple[Rule, ...] = (("networking.k8s.io", ("ingressclasses",), ("get",)),)
UPGRADE: tuple[Rule, ...] = (("apiextensions.k8s.io", ("customresourcedefinitions",), ("get", "create", "patch")),)
"""For the job that applies the CRDs, not for the operator."""

PERMISSIONS = (*NAMESPACED, *LEASE, *CLUSTER)
