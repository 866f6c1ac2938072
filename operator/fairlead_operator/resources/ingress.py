"""The way in: an Ingress with what its controller needs for long-lived sockets, or a route of the Gateway API.

Called by `children`. Only the agents' link is let in unless the platform's API is asked for too. The node's heartbeat
(25 s) keeps a link alive through every idle timeout of a minute and more; what the presets change are the rest:
balancing by open connections where the controller can, and limits that are made for requests.
"""

from __future__ import annotations

from fairlead_operator.api.gateway_spec import Ingress, LinkGatewaySpec, Preset
from fairlead_operator.kube.objects import Object

LINK_PATH = "/v1/link"
API_PATH = "/v1"

PRESETS: dict[Preset, dict[str, str]] = {
    Preset.NONE: {},
    # Traefik takes a socket out of its request timeouts by itself.
    Preset.TRAEFIK: {},
    # Those of the F5 controller and those of the community's (which Traefik reads too): each ignores the other's.
    Preset.NGINX: {
        "nginx.org/proxy-read-timeout": "3600s",
        "nginx.org/proxy-send-timeout": "3600s",
        "nginx.org/lb-method": "least_conn",
        "nginx.ingress.kubernetes.io/proxy-http-version": "1.1",
        "nginx.ingress.kubernetes.io/proxy-connect-timeout": "5",
        "nginx.ingress.kubernetes.io/proxy-read-timeout": "3600",
        "nginx.ingress.kubernetes.io/proxy-send-timeout": "3600",
    },
    Preset.HAPROXY: {"haproxy.org/load-balance": "leastconn"},
}


def ingress(name: str, spec: LinkGatewaySpec) -> Object | None:
    asked = spec.ingress
    if asked is None or not asked.enabled:
        return None
    annotations = dict(PRESETS[asked.preset])
    if asked.preset is Preset.NGINX:
        # Without its name here the F5 controller does not upgrade connections to a Service.
        annotations["nginx.org/websocket-services"] = f"{name}-agents"
    if asked.preset is Preset.TRAEFIK and asked.tls is not None:
        annotations["traefik.ingress.kubernetes.io/router.tls"] = "true"
    paths = [_path(LINK_PATH, f"{name}-agents", "ws")]
    if asked.platform:
        paths.append(_path(API_PATH, f"{name}-platform", "http"))
    rule: Object = {"http": {"paths": paths}}
    rules = [{"host": host, **rule} for host in asked.hosts] or [rule]
    body: Object = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": name, "annotations": {**annotations, **asked.annotations}},
        "spec": {"rules": rules},
    }
    if asked.class_name:
        body["spec"]["ingressClassName"] = asked.class_name
    if asked.tls is not None:
        body["spec"]["tls"] = [_tls(asked)]
    return body


def service_annotations(spec: LinkGatewaySpec) -> dict[str, str]:
    """Those that a controller reads from the agents' Service."""
    if spec.ingress is not None and spec.ingress.enabled and spec.ingress.preset is Preset.HAPROXY:
        # Its default, 2,000 connections a pod, is made for requests.
        return {"haproxy.org/pod-maxconn": str(spec.capacity)}
    return {}


def http_route(name: str, spec: LinkGatewaySpec) -> Object | None:
    asked = spec.http_route
    if asked is None or not asked.enabled:
        return None
    rules = [_rule(LINK_PATH, f"{name}-agents", 8080)]
    if asked.platform:
        rules.append(_rule(API_PATH, f"{name}-platform", 8081))
    body: Object = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "annotations": dict(asked.annotations)},
        "spec": {"parentRefs": list(asked.parent_refs), "rules": rules},
    }
    if asked.hostnames:
        body["spec"]["hostnames"] = list(asked.hostnames)
    return body


def _path(path: str, service: str, port: str) -> Object:
    return {
        "path": path,
        "pathType": "Prefix",
        "backend": {"service": {"name": service, "port": {"name": port}}},
    }


def _tls(asked: Ingress) -> Object:
    body: Object = {}
    if asked.hosts:
        body["hosts"] = list(asked.hosts)
    if asked.tls is not None and asked.tls.secret_name:
        body["secretName"] = asked.tls.secret_name
    return body


def _rule(path: str, service: str, port: int) -> Object:
    """A link lasts as long as it lasts, and so does a stream of results: 0s is no timeout."""
    return {
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "backendRefs": [{"name": service, "port": port}],
        "timeouts": {"request": "0s", "backendRequest": "0s"},
    }
