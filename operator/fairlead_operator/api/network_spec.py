"""How the pods of a LinkGateway are reached: Ingress, HTTPRoute, Services and NetworkPolicy. Pure.

A part of `gateway_spec`. The operator's `policy`, not this module, decides which hosts, annotations and types of
Services an author may use.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from fairlead_operator.api.field_types import ApiStruct, Free, Host, Name, StringMap


class Preset(StrEnum):
    """The ingress controller whose annotations the Ingress gets: each needs different settings for long-lived
    connections.
    """

    NONE = "None"
    TRAEFIK = "Traefik"
    NGINX = "Nginx"
    HAPROXY = "HAProxy"


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class TrafficPolicy(StrEnum):
    CLUSTER = "Cluster"
    LOCAL = "Local"


class Tls(ApiStruct, frozen=True, kw_only=True):
    secret_name: Annotated[
        Name | None, Meta(description="Secret with the certificate. Default: that of the ingress controller.")
    ] = None


class Ingress(ApiStruct, frozen=True, kw_only=True):
    """An Ingress through which agents connect."""

    enabled: bool = True
    class_name: Annotated[Name | None, Meta(description="IngressClass. Default: that of the cluster.")] = None
    hosts: Annotated[list[Host], Meta(max_length=100, description="Host names. Without one, every host.")] = []
    tls: Annotated[Tls | None, Meta(description="When present, the hosts are served with TLS.")] = None
    preset: Annotated[
        Preset, Meta(description="Adds the annotations that this controller needs for long-lived connections.")
    ] = Preset.NONE
    platform: Annotated[bool, Meta(description="Also serves the platform's API (every /v1 path) at these hosts.")] = (
        False
    )
    annotations: Annotated[
        StringMap, Meta(description="Added to those of the preset; they take precedence over those.")
    ] = {}


class HttpRoute(ApiStruct, frozen=True, kw_only=True):
    """An HTTPRoute of the Gateway API through which agents connect."""

    enabled: bool = True
    parent_refs: Annotated[list[Free], Meta(min_length=1, description="The Gateways, as in an HTTPRoute.")]
    hostnames: list[Host] = []
    platform: Annotated[bool, Meta(description="Also serves the platform's API (every /v1 path).")] = False
    annotations: StringMap = {}


class NetworkPolicy(ApiStruct, frozen=True, kw_only=True):
    """Who may connect to the pods, where the cluster enforces it. The kubelet's probes are always allowed."""

    enabled: bool = True
    links_from: Annotated[list[Free], Meta(description="Peers that may open links. Without any, all may.")] = []
    platform_from: Annotated[list[Free], Meta(description="Peers that may call the API. Without any, all may.")] = []
    metrics_from: Annotated[list[Free], Meta(description="Peers that may read metrics. Without any, none may.")] = []
    egress: Annotated[
        list[Free] | None,
        Meta(
            description="Where the pods may connect to, as egress rules of a NetworkPolicy: Redis and a collector. DNS "
            "is added. Without it they may connect to anything."
        ),
    ] = None


class Service(ApiStruct, frozen=True, kw_only=True):
    """How a Service is exposed."""

    type: ServiceType = ServiceType.CLUSTER_IP
    annotations: StringMap = {}
    load_balancer_class: Annotated[Name | None, Meta(description="Type LoadBalancer; cannot be changed.")] = None
    load_balancer_source_ranges: Annotated[
        list[str], Meta(description="Networks from which a LoadBalancer accepts connections.")
    ] = []
    external_traffic_policy: Annotated[
        TrafficPolicy | None,
        Meta(description="Types NodePort and LoadBalancer. Local preserves the address of the client."),
    ] = None


class TlsSecret(ApiStruct, frozen=True, kw_only=True):
    """A certificate and its key in a Secret."""

    secret_name: Annotated[
        Name,
        Meta(
            description="Secret of the type kubernetes.io/tls, as cert-manager writes it. A renewed one is read again "
            "within two minutes, and no link is dropped."
        ),
    ]


class ClientAuth(StrEnum):
    REQUIRED = "Required"
    OPTIONAL = "Optional"


class ClientCertHeader(StrEnum):
    """In which header a proxy passes on the client certificate that it has verified."""

    INGRESS_NGINX = "ssl-client-cert"
    ENVOY = "x-forwarded-client-cert"
    TRAEFIK = "x-forwarded-tls-client-cert"


class ClientCa(ApiStruct, frozen=True, kw_only=True):
    """Mutual TLS: authorities whose certificates name the agents."""

    secret_name: Annotated[Name, Meta(description="Secret with the certificates of the authorities (PEM).")]
    key: Annotated[str, Meta(min_length=1, max_length=253)] = "ca.crt"
    crl_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=253)] | None,
        Meta(
            description="Key of the Secret with certificate revocation lists (PEM), one of each authority. Within some "
            "seconds after the kubelet has updated it, links of revoked certificates are closed.",
        ),
    ] = None
    auth: Annotated[
        ClientAuth,
        Meta(description="Optional: agents may present another credential instead of a certificate."),
    ] = ClientAuth.REQUIRED


class LinkTls(TlsSecret, frozen=True, kw_only=True):
    """TLS in the pods themselves, for links that no ingress ends TLS for."""

    client_ca: Annotated[
        ClientCa | None, Meta(description="When present, the pods ask agents for client certificates.")
    ] = None


class Services(ApiStruct, frozen=True, kw_only=True):
    agents: Annotated[Service, Meta(description="Port 8080, for links.")] = Service()
    platform: Annotated[Service, Meta(description="Port 8081, for the platform's API.")] = Service()
