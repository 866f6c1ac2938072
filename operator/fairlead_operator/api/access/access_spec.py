"""Who may do what with a fleet, and where it is recorded and told: the files of roles, issuers and event sinks, the
audit log, recordings of terminals. Pure.

A part of `gateway_spec`. Files come from a ConfigMap or a Secret of the LinkGateway's namespace, and nodes read them
again when they change. The operator's `policy`, not this module, decides which Secrets and claims an author may name.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from fairlead_operator.api.field_types import ApiStruct, Name, Quantity

Key = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
OTLP_ENDPOINT = r"^https?://[A-Za-z0-9_.:%\[\]-]+(/[!-~]*)?$"
"""What gateways accept."""


class MountedFile(ApiStruct, frozen=True, kw_only=True):
    """A file in a ConfigMap or in a Secret, all of which is mounted, so that the file may name others of it. Exactly
    one of `configMap` and `secret` is needed."""

    config_map: Annotated[Name | None, Meta(description="Name of the ConfigMap.")] = None
    secret: Annotated[Name | None, Meta(description="Name of the Secret.")] = None
    key: Annotated[Key | None, Meta(description="Key of the file.")] = None


class ClonePolicy(StrEnum):
    """What happens to an agent whose key is used by two copies."""

    TELL = "Tell"
    HOLD = "Hold"


class KeySecret(ApiStruct, frozen=True, kw_only=True):
    """A private key in PEM in a Secret."""

    name: Name
    key: Key = "key.pem"


class KeptFolder(ApiStruct, frozen=True, kw_only=True):
    """A folder that the nodes write. Every node writes files of its own name in it."""

    claim_name: Annotated[
        Name | None,
        Meta(
            description="PersistentVolumeClaim that all pods mount, so it has to be ReadWriteMany. Without it each pod "
            "has a folder that is lost with the pod."
        ),
    ] = None
    size_limit: Annotated[
        Quantity,
        Meta(description="Without claimName: the size at which Kubernetes evicts the pod."),
    ] = "1Gi"


class AuditLog(KeptFolder, frozen=True, kw_only=True):
    """The audit log of the nodes. A node that cannot write it refuses what has to be in it."""

    key_secret_ref: Annotated[
        KeySecret | None,
        Meta(description="Ed25519 key (PEM) that signs the heads of the log. A change replaces all pods."),
    ] = None
    otlp_endpoint: (
        Annotated[
            str, Meta(pattern=OTLP_ENDPOINT, description="OTLP/HTTP URL to which the lines of the log are exported.")
        ]
        | None
    ) = None


RolesFile = Annotated[
    MountedFile | None, Meta(description="Roles and bindings of callers of the API; key roles.yaml unless given.")
]
IssuersFile = Annotated[
    MountedFile | None,
    Meta(description="OpenID Connect issuers of users of the API; key issuers.toml unless given."),
]
SinksFile = Annotated[
    MountedFile | None,
    Meta(description="HTTP endpoints to which events of agents are delivered; key sinks.toml unless given."),
]
Recordings = Annotated[KeptFolder | None, Meta(description="Records what every terminal shows, as asciicast files.")]
