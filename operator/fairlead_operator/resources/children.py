"""What the operator makes of a LinkGateway: every object with exactly the fields that are the operator's.

Called by `upkeep`, which applies what stands here and removes what no longer does. Pure: a spec in, dicts out. The
Deployment has no `replicas`: the scale belongs to whoever decides it, and a field that is not applied is not undone.
"""

from __future__ import annotations

from typing import Any

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Service
from fairlead_operator.kube.objects import Object
from fairlead_operator.resources.deployment import ADMIN_PORT, API_PORT, LINK_PORT, PORTS, deployment
from fairlead_operator.resources.ingress import http_route, ingress, service_annotations
from fairlead_operator.resources.owner import Owner

DNS: Object = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
OPTIONAL = ("Ingress", "HTTPRoute", "NetworkPolicy")
"""Kinds that a spec may stop asking for."""


def children(owner: Owner, spec: LinkGatewaySpec, secrets: str = "") -> list[Object]:
    """In the order in which they are applied: what a pod needs stands before the pods. `secrets` as in `deployment`."""
    agents, platform = spec.services.agents, spec.services.platform
    made = [
        _service_account(owner, spec),
        _outer(_service(owner, "agents", LINK_PORT, "ws", "kubernetes.io/ws", service_annotations(spec)), agents),
        _outer(_service(owner, "platform", API_PORT, "http", "http"), platform),
        _metrics_service(owner),
        _disruption_budget(owner),
        _network_policy(owner, spec),
        deployment(owner.name, owner.labels, owner.selector, spec, secrets),
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
    """The pods never speak to the API server; the account is theirs so that no other's rights become theirs."""
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


def _outer(body: Object, asked: Service) -> Object:
    """`body` with what the spec says of how this Service is reached."""
    optional: Object = {
        "loadBalancerClass": asked.load_balancer_class,
        "loadBalancerSourceRanges": list(asked.load_balancer_source_ranges),
        "externalTrafficPolicy": asked.external_traffic_policy and str(asked.external_traffic_policy),
    }
    body["metadata"]["annotations"] |= asked.annotations
    body["spec"] |= {"type": str(asked.type), **{key: value for key, value in optional.items() if value}}
    return body


def _metrics_service(owner: Owner) -> Object:
    """Headless, and with the pods that are not ready: a draining pod is watched to its end."""
    body = _service(owner, "metrics", ADMIN_PORT, "metrics", "http")
    body["spec"] |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return body


def _disruption_budget(owner: Owner) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": owner.name},
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": owner.selector},
            # A pod that never became ready holds no link: nothing is lost by its eviction.
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
    if policy.metrics_from:  # metrics ask for no credential; probes of the kubelet pass every policy
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
