"""Objects of the Kubernetes API as plain dicts, references to them, and the URL path of each kind. Pure.

They are dicts and not models, because server-side apply must send exactly the operator's own fields, and a model would
add others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """Identifies one object in a namespace; a later object of the same name has another uid."""

    kind: str
    name: str
    namespace: str
    uid: str


KINDS: Mapping[str, tuple[str, str]] = {
    "ControllerRevision": ("apps/v1", "controllerrevisions"),
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
    "Node": ("v1", "nodes"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
}
"""Kind → API version and resource name."""


def path(kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
    """The URL path of a kind's objects or of one of them; `namespace` is "" for the whole cluster."""
    version, resource = KINDS[kind]
    parts = ["/apis" if "/" in version else "/api", version]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [part for part in (resource, quote(name, safe=""), subresource) if part]
    return "/".join(parts)
