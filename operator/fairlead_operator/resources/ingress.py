"""The Ingress or HTTPRoute through which agents connect, with the settings that long-lived connections need. Pure.

Called by `children`. Only what agents ask for is routed, links and credentials, unless the spec asks for the platform's
API too. The links' heartbeat (25 s) keeps them open through every idle timeout of a minute or more. The presets set the
rest: balancing by open connections, if the controller supports it, and limits whose defaults suit short requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.network_spec import Ingress, Preset
from fairlead_operator.kube.objects import Object

AGENT_PATHS = ("/v1/link", "/v1/enrolments", "/v1/renewals")
"""What agents ask the link port for: links, and their credentials."""
API_PATH = "/v1"

PRESETS: dict[Preset, dict[str, str]] = {
    Preset.NONE: {},
    # Traefik itself exempts WebSocket connections from its request timeouts.
    Preset.TRAEFIK: {},
    # Annotations of F5's controller and of the community's (which Traefik also reads): each ignores the other's.
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
    ingress_spec = spec.ingress
    if ingress_spec is None or not ingress_spec.enabled:
        return None
    annotations = dict(PRESETS[ingress_spec.preset])
    if ingress_spec.preset is Preset.NGINX:
        # The F5 controller upgrades connections only to the Services named here.
        annotations["nginx.org/websocket-services"] = f"{name}-agents"
    if ingress_spec.preset is Preset.TRAEFIK and ingress_spec.tls is not None:
        annotations["traefik.ingress.kubernetes.io/router.tls"] = "true"
    paths = [_path(path, f"{name}-agents", "ws") for path in AGENT_PATHS]
    if ingress_spec.platform:
        paths.append(_path(API_PATH, f"{name}-platform", "http"))
    rule: Object = {"http": {"paths": paths}}
    rules = [{"host": host, **rule} for host in ingress_spec.hosts] or [rule]
    body: Object = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": name, "annotations": {**annotations, **ingress_spec.annotations}},
        "spec": {"rules": rules},
    }
    if ingress_spec.class_name:
        body["spec"]["ingressClassName"] = ingress_spec.class_name
    if ingress_spec.tls is not None:
        body["spec"]["tls"] = [_tls(ingress_spec)]
    return body


def service_annotations(spec: LinkGatewaySpec) -> dict[str, str]:
    """Annotations that a controller reads from the agents' Service."""
    if spec.ingress is not None and spec.ingress.enabled and spec.ingress.preset is Preset.HAPROXY:
        # The default is 2,000 connections per pod, which suits short requests.
        return {"haproxy.org/pod-maxconn": str(spec.capacity)}
    return {}


def http_route(name: str, spec: LinkGatewaySpec) -> Object | None:
    route_spec = spec.http_route
    if route_spec is None or not route_spec.enabled:
        return None
    rules = [_rule(AGENT_PATHS, f"{name}-agents", 8080)]
    if route_spec.platform:
        rules.append(_rule((API_PATH,), f"{name}-platform", 8081))
    body: Object = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "annotations": dict(route_spec.annotations)},
        "spec": {"parentRefs": list(route_spec.parent_refs), "rules": rules},
    }
    if route_spec.hostnames:
        body["spec"]["hostnames"] = list(route_spec.hostnames)
    return body


def _path(path: str, service: str, port: str) -> Object:
    return {
        "path": path,
        "pathType": "Prefix",
        "backend": {"service": {"name": service, "port": {"name": port}}},
    }


def _tls(ingress_spec: Ingress) -> Object:
    body: Object = {}
    if ingress_spec.hosts:
        body["hosts"] = list(ingress_spec.hosts)
    if ingress_spec.tls is not None and ingress_spec.tls.secret_name:
        body["secretName"] = ingress_spec.tls.secret_name
    return body


def _rule(paths: Sequence[str], service: str, port: int) -> Object:
    """A rule of the HTTPRoute. Links and streams of results have no maximum duration: 0s means no timeout."""
    return {
        "matches": [{"path": {"type": "PathPrefix", "value": path}} for path in paths],
        "backendRefs": [{"name": service, "port": port}],
        "timeouts": {"request": "0s", "backendRequest": "0s"},
    }
