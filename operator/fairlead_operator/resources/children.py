"""The child objects of a LinkGateway, each with exactly the fields that are the operator's own. Pure.

`runtime.child_applier` applies what `children` returns and removes what it no longer returns. The Deployment has no
`replicas`: the autoscaler, an HPA or a person sets the scale, and server-side apply does not change fields that are not
sent.
"""

from __future__ import annotations

from typing import Any

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.network_spec import Service
from fairlead_operator.kube.objects import Object
from fairlead_operator.resources.deployment import ADMIN_PORT, API_PORT, LINK_PORT, PORTS, deployment
from fairlead_operator.resources.ingress import http_route, ingress, service_annotations
from fairlead_operator.resources.owner import Owner

DNS: Object = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
OPTIONAL_KINDS = ("Ingress", "HTTPRoute", "NetworkPolicy")
"""Kinds that exist only while the spec asks for them."""


def children(owner: Owner, spec: LinkGatewaySpec, checksum: str = "", excluded: int = 0) -> list[Object]:
    """All child objects in the order in which they are applied: what a pod needs comes before the Deployment.
    `checksum` is as in `deployment`, `excluded` as in `_disruption_budget`.
    """
    agents, platform = spec.services.agents, spec.services.platform
    scheme = "ws" if spec.link_tls is None else "wss"
    links = _service(owner, "agents", LINK_PORT, scheme, f"kubernetes.io/{scheme}", service_annotations(spec))
    made = [
        _service_account(owner, spec),
        _exposed(links, agents),
        _exposed(_service(owner, "platform", API_PORT, "http", "http"), platform),
        _metrics_service(owner),
        _disruption_budget(owner, excluded),
        _network_policy(owner, spec),
        deployment(owner.name, owner.labels, owner.selector, spec, checksum),
        ingress(owner.name, spec),
        http_route(owner.name, spec),
    ]
    return [_owned(owner, body) for body in made if body is not None]


def _owned(owner: Owner, body: Object) -> Object:
    meta = body["metadata"]
    return {
        **body,
        "metadata": {
            **meta,
            "namespace": owner.namespace,
            "labels": {**meta.get("labels", {}), **owner.labels},
            "ownerReferences": [{**owner.reference, "controller": True}],
        },
    }


def _service_account(owner: Owner, spec: LinkGatewaySpec) -> Object:
    """The ServiceAccount of the pods. They never call the API server, but have an account of their own, so that they do
    not get the rights of another.
    """
    body: Object = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": owner.name},
        "automountServiceAccountToken": False,
    }
    if spec.pod.image_pull_secrets:
        body["imagePullSecrets"] = list(spec.pod.image_pull_secrets)
    return body


def _service(
    owner: Owner, role: str, port: int, name: str, protocol: str, annotations: dict[str, str] | None = None
) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{owner.name}-{role}", "annotations": annotations or {}},
        "spec": {
            "selector": owner.selector,
            "ports": [
                {"name": name, "port": port, "targetPort": PORTS[port], "protocol": "TCP", "appProtocol": protocol}
            ],
        },
    }


def _exposed(body: Object, service: Service) -> Object:
    """Adds to the Service `body` the fields that say how it is exposed."""
    optional: Object = {
        "loadBalancerClass": service.load_balancer_class,
        "loadBalancerSourceRanges": list(service.load_balancer_source_ranges),
        "externalTrafficPolicy": service.external_traffic_policy and str(service.external_traffic_policy),
    }
    body["metadata"]["annotations"] |= service.annotations
    body["spec"] |= {"type": str(service.type), **{key: value for key, value in optional.items() if value}}
    return body


def _metrics_service(owner: Owner) -> Object:
    """Headless, and with the pods that are not ready, so that a draining pod is scraped until its end."""
    body = _service(owner, "metrics", ADMIN_PORT, "metrics", "http")
    body["spec"] |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return body


def _disruption_budget(owner: Owner, excluded: int) -> Object:
    """One pod may be evicted at a time. `excluded` pods leave new links to others: the budget counts them as unhealthy,
    since they are unready, and would otherwise allow no eviction of the others."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": owner.name},
        "spec": {
            "maxUnavailable": 1 + excluded,
            "selector": {"matchLabels": owner.selector},
            # A pod that never became ready has no links, so its eviction costs nothing; an excluded pod drains.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _network_policy(owner: Owner, spec: LinkGatewaySpec) -> Object | None:
    policy = spec.network_policy
    if not policy.enabled:
        return None

    def rule(port: int, peers: list[dict[str, Any]]) -> Object:
        ports = {"ports": [{"port": port, "protocol": "TCP"}]}
        return {**ports, "from": list(peers)} if peers else ports

    ingress = [rule(LINK_PORT, policy.links_from), rule(API_PORT, policy.platform_from)]
    if policy.metrics_from:  # /metrics needs no credential; the kubelet's probes pass every policy
        ingress.append(rule(ADMIN_PORT, policy.metrics_from))
    egress = {} if policy.egress is None else {"egress": [DNS, *policy.egress]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": owner.name},
        "spec": {
            "podSelector": {"matchLabels": owner.selector},
            "policyTypes": ["Ingress", "Egress"] if egress else ["Ingress"],
            "ingress": ingress,
            **egress,
        },
    }
