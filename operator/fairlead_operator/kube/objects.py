"""Objects of the API server as plain dicts, and where each kind stands. Pure; used by whatever makes or reads one.

Dicts and not models: server-side apply must send exactly the fields that are ours, and a model would add its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """Names one object of a namespace, and no later one of the same name."""

    kind: str
    name: str
    namespace: str
    uid: str


KINDS: Mapping[str, tuple[str, str]] = {
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "Deployment": ("apps/v1", "deployments"),
    "Event": ("v1", "events"),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", "httproutes"),
    "Ingress": ("networking.k8s.io/v1", "ingresses"),
    "IngressClass": ("networking.k8s.io/v1", "ingressclasses"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "LinkGateway": ("fairlead.dev/v1alpha1", "linkgateways"),
    "LinkOperation": ("fairlead.dev/v1alpha1", "linkoperations"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
}
"""Kind → API version and resource."""


def path(kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
    version, resource = KINDS[kind]
    parts = ["/apis" if "/" in version else "/api", version]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [part for part in (resource, quote(name, safe=""), subresource) if part]
    return "/".join(parts)
