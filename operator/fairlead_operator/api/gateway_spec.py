"""What a LinkGateway asks for: the one source of the CRD's schema, of its defaults and of what the operator reads.

`crd` prints the schema made of these Structs, `rules.read` turns a resource's spec into them, and everything else takes
them as they are. Pure: no cluster, no clock. The limits stand twice in effect, never in text: the API server
enforces them by the generated schema, and `rules.read` again, because a resource may be older than its CRD.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from fairlead_operator.api.field_types import Free, Host, Name, StringMap
from fairlead_operator.api.pod_spec import Pod, Resources, RollingUpdate

GROUP = "fairlead.dev"
VERSION = "v1alpha1"
PLURAL = "linkgateways"
KIND = "LinkGateway"

STOP_MARGIN = 30
"""Seconds of a pod's grace behind its drain and its delay: the servers' stop takes up to 13 s, the node's leave 5 s,
and the rest is for a machine that is short of CPU."""

REDIS_URL = r"^rediss?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?([/?]\S*)?$"
"""What gateways take, less what no pod could use (the embedded server, a socket in a folder), and less a user and a
password: everybody who may look at a LinkGateway would see them."""
TRACE_ENDPOINT = r"^(https?://[A-Za-z0-9_.:%\[\]-]+(/[!-~]*)?)?$"
"""What gateways take."""


class Mode(StrEnum):
    AUTO = "Auto"
    """The operator decides and writes the scale."""
    EXTERNAL = "External"
    """Another writes the scale (an HPA, KEDA, a person); the operator keeps the deletion deletion_costs true."""
    PAUSED = "Paused"
    """Nothing is scaled and no deletion cost is written."""
    DRY_RUN = "DryRun"
    """The operator decides and tells what it would do, and writes nothing."""


class Preset(StrEnum):
    """Whose annotations the Ingress carries: long-lived sockets need other settings at each controller."""

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


class _Part(Struct, frozen=True, rename="camel"):
    """Camel case outside, as Kubernetes writes it."""


class Replicas(_Part, frozen=True, kw_only=True):
    """Bounds of the number of pods."""

    min: Annotated[int, Meta(ge=1, le=1000, description="Never fewer pods than this.")] = 2
    max: Annotated[int, Meta(ge=1, le=1000, description="Never more pods than this.")] = 10


class SecretKey(_Part, frozen=True, kw_only=True):
    """One key of a Secret in the LinkGateway's namespace."""

    name: Name
    key: Annotated[str, Meta(min_length=1, max_length=253)] = "url"


class AuthoritySecret(_Part, frozen=True, kw_only=True):
    """Certificates in PEM in a Secret, as cert-manager writes them."""

    name: Name
    key: Annotated[str, Meta(min_length=1, max_length=253)] = "ca.crt"


class Redis(_Part, frozen=True, kw_only=True):
    """Where the fleet's state stands. Exactly one of `url` and `secretRef`."""

    url: (
        Annotated[
            str,
            Meta(
                pattern=REDIS_URL,
                description="redis://host:6379 or rediss://…, for a server without a password; else use secretRef.",
            ),
        ]
        | None
    ) = None
    secret_ref: Annotated[SecretKey | None, Meta(description="The Secret that holds the URL.")] = None
    ca_secret_ref: Annotated[
        AuthoritySecret | None,
        Meta(description="The Secret with the authorities that sign the certificate of a rediss:// server."),
    ] = None


class TokenSecret(_Part, frozen=True, kw_only=True):
    """A Secret with both tokens, in the LinkGateway's namespace."""

    name: Name
    agent_key: Annotated[str, Meta(min_length=1, description="Key of what agents present.")] = "agent-token"
    platform_key: Annotated[str, Meta(min_length=1, description="Key of what callers of the API present.")] = (
        "platform-token"
    )


class Tokens(_Part, frozen=True, kw_only=True):
    secret_ref: TokenSecret


class Tls(_Part, frozen=True, kw_only=True):
    secret_name: Annotated[Name | None, Meta(description="Certificate; the controller's default without it.")] = None


class Ingress(_Part, frozen=True, kw_only=True):
    """The way in for agents, by an Ingress."""

    enabled: bool = True
    class_name: Annotated[Name | None, Meta(description="IngressClass; the cluster's default without it.")] = None
    hosts: Annotated[list[Host], Meta(max_length=100, description="Host names; any without one.")] = []
    tls: Annotated[Tls | None, Meta(description="Present: the hosts are served with TLS.")] = None
    preset: Annotated[Preset, Meta(description="Adds what this controller needs for long-lived sockets.")] = Preset.NONE
    platform: Annotated[bool, Meta(description="Also serves the platform's API (every /v1 path) at these hosts.")] = (
        False
    )
    annotations: Annotated[StringMap, Meta(description="Added to those of the preset, and stronger.")] = {}


class HttpRoute(_Part, frozen=True, kw_only=True):
    """The way in for agents, by a route of the Gateway API."""

    enabled: bool = True
    parent_refs: Annotated[list[Free], Meta(min_length=1, description="The Gateways, as HTTPRoute has them.")]
    hostnames: list[Host] = []
    platform: Annotated[bool, Meta(description="Also serves the platform's API (every /v1 path) here.")] = False
    annotations: StringMap = {}


class Scaling(_Part, frozen=True, kw_only=True):
    """How many pods are wanted. docs/operator.md explains each bound."""

    mode: Mode = Mode.AUTO
    replicas: (
        Annotated[int, Meta(ge=1, le=1000, description="Mode External: the number to move to, as /scale writes it.")]
        | None
    ) = None
    window_seconds: Annotated[
        int, Meta(ge=30, le=86_400, description="Fewer pods only after so long without a need for this many.")
    ] = 600
    step_down_seconds: Annotated[int, Meta(ge=10, le=3600, description="Between two removals of a pod.")] = 120
    survive: Annotated[
        int, Meta(ge=0, le=100, description="Pods that may die while the others hold all links (at 95 %).")
    ] = 1
    herd_seconds: Annotated[
        int, Meta(ge=10, le=3600, description="The whole fleet must be able to come back within this time.")
    ] = 300
    lead_seconds: Annotated[
        int,
        Meta(ge=5, le=3600, description="Growth is looked ahead by it until starts of pods were measured."),
    ] = 30


class Drain(_Part, frozen=True, kw_only=True):
    """How a pod sends its agents elsewhere. Changing it rolls all pods once: it stands in the pod template."""

    rate: Annotated[int, Meta(ge=1, le=100_000, description="Links a second of one pod.")] = 200
    max_seconds: Annotated[
        int, Meta(ge=1, le=3600, description="A drain may take this long; capacity ÷ rate must fit into it.")
    ] = 300
    shutdown_delay_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=3600,
            description="A pod that was told to stop serves all its ports for at least this long: the time that "
            "endpoints, kube-proxy and the ingress controller need to send nothing more to it.",
        ),
    ] = 10


class Telemetry(_Part, frozen=True, kw_only=True):
    otlp_endpoint: (
        Annotated[str, Meta(pattern=TRACE_ENDPOINT, description="OTLP/HTTP address, as http://collector:4318.")] | None
    ) = None


class NetworkPolicy(_Part, frozen=True, kw_only=True):
    """Who may reach the pods, where the cluster enforces it. Probes of the kubelet always may."""

    enabled: bool = True
    links_from: Annotated[list[Free], Meta(description="Peers that may open links; all without any.")] = []
    platform_from: Annotated[list[Free], Meta(description="Peers that may call the API; all without any.")] = []
    metrics_from: Annotated[list[Free], Meta(description="Peers that may read metrics; nobody without any.")] = []
    egress: Annotated[
        list[Free] | None,
        Meta(
            description="Rules of where the pods may connect to, as a NetworkPolicy has them: Redis and a collector. "
            "DNS is added. Without it they may connect to anything."
        ),
    ] = None


class Service(_Part, frozen=True, kw_only=True):
    """How a Service is reached."""

    type: ServiceType = ServiceType.CLUSTER_IP
    annotations: StringMap = {}
    load_balancer_class: Annotated[Name | None, Meta(description="Of a LoadBalancer; cannot be changed.")] = None
    load_balancer_source_ranges: Annotated[list[str], Meta(description="Networks that a LoadBalancer lets in.")] = []
    external_traffic_policy: Annotated[
        TrafficPolicy | None, Meta(description="Of a NodePort or LoadBalancer. Local keeps the address of the client.")
    ] = None


class Services(_Part, frozen=True, kw_only=True):
    agents: Annotated[Service, Meta(description="Port 8080, for links.")] = Service()
    platform: Annotated[Service, Meta(description="Port 8081, for the platform's API.")] = Service()


class LinkGatewaySpec(_Part, frozen=True, kw_only=True):
    """One fleet of gateway pods."""

    image: Annotated[str, Meta(min_length=1, max_length=1000, description="Image of the gateway.")]
    replicas: Replicas = Replicas()
    capacity: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Links that one pod takes. Changing it rolls all pods.",
        ),
    ] = 10_000
    target_utilisation: Annotated[int, Meta(ge=10, le=90, description="Percent of the capacity to fill.")] = 70
    accept_rate: Annotated[int, Meta(ge=1, le=100_000, description="New links a second that one pod takes.")] = 200
    redis: Redis
    tokens: Tokens
    ingress: Ingress | None = None
    http_route: HttpRoute | None = None
    scaling: Scaling = Scaling()
    drain: Drain = Drain()
    telemetry: Telemetry = Telemetry()
    forget_after_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=10 * 366 * 86_400,
            description="An agent that was away for so long is forgotten, with its labels and facts; 0: never.",
        ),
    ] = 30 * 86_400
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$")] = "info"
    resources: Annotated[Resources, Meta(description="Requests and limits of the container.")] = Resources()
    services: Services = Services()
    network_policy: NetworkPolicy = NetworkPolicy()
    rolling_update: RollingUpdate = RollingUpdate()
    pod: Pod = Pod()

    @property
    def drain_seconds(self) -> int:
        """How long a full pod takes to send all its agents elsewhere."""
        return math.ceil(self.capacity / self.drain.rate)

    @property
    def grace_seconds(self) -> int:
        """terminationGracePeriodSeconds: what a full pod needs from SIGTERM to its end."""
        return max(self.drain_seconds, self.drain.shutdown_delay_seconds) + STOP_MARGIN
