"""The ways in: CoreDNS for names inside the cluster, and Traefik as the controller of Ingresses and HTTPRoutes.

Used by `up` and `down`. Both are processes of the cluster's namespace and not pods: no image of theirs can be had
where there is no registry. Pods reach CoreDNS by the Service address every pod has in its resolv.conf; the machine
reaches Traefik at the node's port 8000. Its access log (a line when a connection ends) and its metrics at port 8001
(open connections) tell what really came in that way.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import binaries
import place
import processes
from controlplane import kubectl

READY_TIMEOUT = 60.0
ACCESS_LOG = place.LOG / "traefik-access.json"
"""An upgraded connection stands there with status 0; its header Sec-WebSocket-Accept shows that it was a 101."""

_COREFILE = f"""\
cluster.local in-addr.arpa {{
    bind {place.NODE_IP}
    kubernetes {{
        kubeconfig {place.KUBECONFIG}
        ttl 5
    }}
    cache 5
    errors
    health 127.0.0.1:8053
}}
"""
_DNS = [
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {
            "clusterIP": place.DNS_SERVICE_IP,
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}],
        },
    },
    {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
        "endpoints": [{"addresses": [place.NODE_IP]}],
    },
]
_CLASSES = [
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": "traefik", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
        "spec": {"controller": "traefik.io/ingress-controller"},
    },
    {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": {"name": "traefik"},
        "spec": {"controllerName": "traefik.io/gateway-controller"},
    },
]


def start() -> None:
    (place.RUN / "Corefile").write_text(_COREFILE)
    kubectl("apply", "--server-side", "-f", str(place.BIN.resolve().parent / binaries.ROUTES))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    things = {"apiVersion": "v1", "kind": "List", "items": [*_DNS, *_CLASSES]}
    kubectl("apply", "-f", "-", stdin=json.dumps(things))
    processes.start("coredns", [place.BIN / "coredns", "-conf", place.RUN / "Corefile"])
    processes.start("traefik", [
        place.BIN / "traefik", f"--entrypoints.web.address={place.NODE_IP}:8000",
        f"--entrypoints.websecure.address={place.NODE_IP}:8443", "--entrypoints.websecure.http.tls=true",
        f"--entrypoints.traefik.address={place.NODE_IP}:8001", "--metrics.prometheus=true", "--log.level=INFO",
        "--accesslog=true", "--accesslog.format=json", f"--accesslog.filepath={ACCESS_LOG}",
        "--accesslog.fields.headers.names.Sec-WebSocket-Accept=keep",
        "--providers.kubernetesgateway=true",
        "--providers.kubernetesingress=true", f"--providers.kubernetesingress.ingressendpoint.ip={place.NODE_IP}",
        "--global.checknewversion=false", "--global.sendanonymoususage=false",
    ], env={"KUBECONFIG": str(place.KUBECONFIG)})  # fmt: skip


def ready() -> None:
    processes.until("Traefik", _answers, READY_TIMEOUT, "coredns", "traefik")


def stop() -> None:
    for name in ("traefik", "coredns"):
        processes.stop(name)


def _answers() -> bool:
    """404 is an answer: there is no Ingress yet."""
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(place.INGRESS, timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
