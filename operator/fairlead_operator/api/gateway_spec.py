"""The spec of a LinkGateway: the only source of the CRD's schema, of its defaults and of what the operator reads. Pure.

`crd` prints the schema of these Structs, `validation.read_spec` reads a resource into them, and everything else uses
them unchanged. The API server enforces the limits with the generated schema, and `read_spec` checks them again, because
a resource may be older than its CRD.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from fairlead.fleet.moves.move_rate import FINAL_SECONDS, RECEIVED_SHARE
from fairlead_operator.api.access.access_spec import (
    AuditLog,
    ClonePolicy,
    IssuersFile,
    MountedFile,
    Recordings,
    RolesFile,
    SinksFile,
)
from fairlead_operator.api.field_types import ApiStruct, Name
from fairlead_operator.api.moves_spec import Drain, Moves, Rebalance
from fairlead_operator.api.network_spec import (
    ClientCertHeader,
    HttpRoute,
    Ingress,
    LinkTls,
    NetworkPolicy,
    Services,
    TlsSecret,
)
from fairlead_operator.api.pod_spec import Pod, Resources, RollingUpdate
from fairlead_operator.api.scaling_signals import ScalingSignals

GROUP = "fairlead.dev"
VERSION = "v1alpha1"
PLURAL = "linkgateways"
KIND = "LinkGateway"

STOP_MARGIN = 30
"""Seconds of a pod's grace period in addition to the drain and the shutdown delay: the servers stop within 13 s, the
node leaves the fleet within 5 s, and the rest is for a machine that is short of CPU."""

_REDIS_HOST = r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?"
REDIS_URL = (
    rf"^(rediss?://{_REDIS_HOST}([/?]\S*)?|rediss?\+cluster://{_REDIS_HOST}(,{_REDIS_HOST})*(/?\?\S*|/)?"
    rf"|rediss?\+sentinel://{_REDIS_HOST}(,{_REDIS_HOST})*/[^/?\s]\S*)$"
)
"""The URLs that gateways accept, except for those that no pod could use (the embedded server, a Unix socket), and
without a user and a password, which everyone who may read a LinkGateway would see."""
TRACE_ENDPOINT = r"^(https?://[A-Za-z0-9_.:%\[\]-]+(/[!-~]*)?)?$"
"""What gateways accept."""


class Mode(StrEnum):
    AUTO = "Auto"
    """The operator decides and writes the scale."""
    EXTERNAL = "External"
    """Something else writes the scale (an HPA, KEDA, a person); the operator keeps the pod deletion costs up to
    date."""
    PAUSED = "Paused"
    """The operator writes neither the scale nor pod deletion costs."""
    DRY_RUN = "DryRun"
    """The operator decides and reports what it would do, and writes nothing."""


class Replicas(ApiStruct, frozen=True, kw_only=True):
    """Bounds of the number of pods."""

    min: Annotated[int, Meta(ge=1, le=1000, description="The least number of pods.")] = 2
    max: Annotated[int, Meta(ge=1, le=1000, description="The greatest number of pods.")] = 10


class SecretKey(ApiStruct, frozen=True, kw_only=True):
    """One key of a Secret in the LinkGateway's namespace."""

    name: Name
    key: Annotated[str, Meta(min_length=1, max_length=253)] = "url"


class CaSecret(ApiStruct, frozen=True, kw_only=True):
    """CA certificates in PEM in a Secret, as cert-manager writes them."""

    name: Name
    key: Annotated[str, Meta(min_length=1, max_length=253)] = "ca.crt"


class Redis(ApiStruct, frozen=True, kw_only=True):
    """The Redis that holds the fleet's state. Exactly one of `url` and `secretRef` is needed."""

    url: (
        Annotated[
            str,
            Meta(
                pattern=REDIS_URL,
                description="redis://host:6379, redis+sentinel://host:26379,host:26379/PRIMARY or "
                "redis+cluster://host:6379,host:6379, with rediss in place of redis for TLS, for servers without a "
                "password. With a password use secretRef.",
            ),
        ]
        | None
    ) = None
    secret_ref: Annotated[SecretKey | None, Meta(description="The Secret that holds the URL.")] = None
    ca_secret_ref: Annotated[
        CaSecret | None, Meta(description="The Secret with the CA certificates that verify a rediss:// server.")
    ] = None
    operator_secret_ref: Annotated[SecretKey | None, Meta(description="The operator's own URL, with its user.")] = None
    client_tls: Annotated[TlsSecret | None, Meta(description="What pods and operator present to it.")] = None


class TokenSecret(ApiStruct, frozen=True, kw_only=True):
    """A Secret with both tokens, and the key that lets agents enrol, in the LinkGateway's namespace."""

    name: Name
    agent_key: Annotated[str, Meta(min_length=1, description="Key of the token that agents present.")] = "agent-token"
    platform_key: Annotated[
        str, Meta(min_length=1, description="Key of the token that callers of the API present.")
    ] = "platform-token"
    issuer_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                description="Key of the Ed25519 private key (PEM) that signs the credentials of agents. Without it "
                "agents cannot enrol.",
            ),
        ]
        | None
    ) = None


class Tokens(ApiStruct, frozen=True, kw_only=True):
    secret_ref: TokenSecret


class Scaling(ApiStruct, frozen=True, kw_only=True):
    """How the number of pods is decided. docs/operator.md explains each rule."""

    mode: Mode = Mode.AUTO
    replicas: (
        Annotated[
            int, Meta(ge=1, le=1000, description="Mode External: the number of pods to scale to, as /scale writes it.")
        ]
        | None
    ) = None
    window_seconds: (
        Annotated[
            int,
            Meta(
                ge=30,
                le=86_400,
                description="A pod is removed only after fewer pods have sufficed for this long. Without it the time "
                "follows from how long pods take to start, and from the links that were lost.",
            ),
        ]
        | None
    ) = None
    step_down_seconds: Annotated[int, Meta(ge=10, le=3600, description="Time between two removals of a pod.")] = 120
    failure_tolerance: Annotated[
        int, Meta(ge=0, le=100, description="Pods that may fail at once while the others hold all links (at 95 %).")
    ] = 1
    zone_tolerance: Annotated[
        int,
        Meta(
            ge=0,
            le=10,
            description="Zones that may fail at once while the pods of the others hold all links (at 95 %).",
        ),
    ] = 0
    reconnect_seconds: Annotated[
        int, Meta(ge=10, le=3600, description="The whole fleet must be able to reconnect within this time.")
    ] = 300
    week_profile: Annotated[
        bool,
        Meta(description="Whether pods are added ahead of a rise that the last weeks had at the same time."),
    ] = False
    signals: ScalingSignals = ScalingSignals()
    lead_seconds: Annotated[
        int,
        Meta(
            ge=5,
            le=3600,
            description="How far ahead growth is extrapolated until the operator has measured how long pods take to "
            "start.",
        ),
    ] = 30


class Canary(ApiStruct, frozen=True, kw_only=True):
    """A few pods of a new template serve a part of the fleet, and are compared with the others, before all pods are
    replaced. docs/operator.md describes what is measured."""

    percent: Annotated[
        int,
        Meta(
            ge=1,
            le=50,
            description="Percentage of the pods that the canary has, rounded up, but no more pods than the budget of "
            "moves can empty at once; at most this percentage of the links is moved for it.",
        ),
    ] = 5
    seconds: Annotated[
        int, Meta(ge=30, le=86_400, description="How long the canary is compared with the other pods.")
    ] = 300
    min_links: Annotated[
        int, Meta(ge=1, le=100_000, description="Links that the canary must have accepted before they are judged.")
    ] = 10
    min_commands: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Commands that must have ended on the canary before they are judged."),
    ] = 50


class Rollout(ApiStruct, frozen=True, kw_only=True):
    """How a new pod template comes to all pods. `rollingUpdate` is how the Deployment then replaces them."""

    canary: Annotated[Canary | None, Meta(description="Absent: every new template replaces all pods at once.")] = None


class Telemetry(ApiStruct, frozen=True, kw_only=True):
    otlp_endpoint: (
        Annotated[str, Meta(pattern=TRACE_ENDPOINT, description="OTLP/HTTP URL, such as http://collector:4318.")] | None
    ) = None


class LinkGatewaySpec(ApiStruct, frozen=True, kw_only=True):
    """One fleet of gateway pods."""

    image: Annotated[str, Meta(min_length=1, max_length=1000, description="Image of the gateway.")]
    replicas: Replicas = Replicas()
    capacity: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Links that one pod takes. A change replaces all pods.")
    ] = 10_000
    target_utilisation: Annotated[
        int, Meta(ge=10, le=90, description="Percentage of the capacity up to which pods are filled.")
    ] = 70
    accept_rate: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="New links per second that are expected of one pod. Drains, moves and the number of pods are "
            "planned with it. A pod that can accept more does.",
        ),
    ] = 200
    redis: Redis
    tokens: Tokens
    require_identity: Annotated[
        bool | None,
        Meta(
            description="Only agents with an identity of their own may connect. Default: whether agents can enrol "
            "(tokens.secretRef.issuerKey). With false, whoever has the shared agent token can be any agent: for trials."
        ),
    ] = None
    clone_policy: Annotated[
        ClonePolicy | None,
        Meta(
            description="Tell (the default): an agent whose key is used by two copies, such as a cloned disk, is told, "
            "and the copies take turns. Hold: its key is revoked too, until it enrols anew."
        ),
    ] = None
    roles: RolesFile = None
    issuers: IssuersFile = None
    event_sinks: SinksFile = None
    audit_log: AuditLog | None = None
    terminal_recordings: Recordings = None
    ingress: Ingress | None = None
    http_route: HttpRoute | None = None
    link_tls: Annotated[
        LinkTls | None,
        Meta(description="When present, the pods serve links with TLS themselves. Ingress and HTTPRoute must be off."),
    ] = None
    trusted_proxies: Annotated[
        list[Annotated[str, Meta(pattern=r"^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$", max_length=64)]],
        Meta(
            max_length=100,
            description="Addresses and networks of the proxies whose forwarding headers are believed, such as those of "
            "the ingress controller's pods.",
        ),
    ] = []
    link_client_cert_header: Annotated[
        ClientCertHeader | None,
        Meta(
            description="Header in which trustedProxies pass on the client certificate of an agent, which they have "
            "verified: ssl-client-cert (ingress-nginx), x-forwarded-client-cert (Envoy) or x-forwarded-tls-client-cert "
            "(Traefik). From anybody else it is refused."
        ),
    ] = None
    scaling: Scaling = Scaling()
    moves: Moves = Moves()
    drain: Drain = Drain()
    rebalance: Rebalance = Rebalance()
    telemetry: Telemetry = Telemetry()
    forget_after_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=10 * 366 * 86_400,
            description="An agent that is offline for this long is forgotten, with its labels and facts. 0: never.",
        ),
    ] = 30 * 86_400
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$")] = "info"
    resources: Annotated[Resources, Meta(description="Requests and limits of the container.")] = Resources()
    services: Services = Services()
    network_policy: NetworkPolicy = NetworkPolicy()
    rolling_update: RollingUpdate = RollingUpdate()
    rollout: Rollout = Rollout()
    pod: Pod = Pod()

    @property
    def files(self) -> list[MountedFile]:
        """The files of a ConfigMap or Secret that the pods mount."""
        return [file for file in (self.roles, self.issuers, self.event_sinks) if file is not None]

    @property
    def identity_required(self) -> bool:
        """Whether the shared agent token opens no link."""
        can_enrol = self.tokens.secret_ref.issuer_key is not None
        return can_enrol if self.require_identity is None else self.require_identity

    @property
    def moves_of_one(self) -> int:
        """Moves per second for a pod that drains alone while one other pod receives: half of what that pod accepts, at
        most `moves.maxPerSecond`.
        """
        return min(self.moves.max_per_second, math.ceil(self.accept_rate * RECEIVED_SHARE))

    @property
    def drain_seconds(self) -> int:
        """The time limit of a pod's drain in seconds: what a full pod needs at `moves_of_one`, plus the last part,
        which does not wait for commands. Pods that drain together would need longer, unless more than one pod receives;
        links that are left when the last part begins overdraw the budget.
        """
        return math.ceil(self.capacity / self.moves_of_one) + FINAL_SECONDS

    @property
    def grace_seconds(self) -> int:
        """terminationGracePeriodSeconds: the seconds that a full pod needs from SIGTERM to its end."""
        return max(self.drain_seconds, self.drain.shutdown_delay_seconds) + STOP_MARGIN
