"""Reads the issuer's key from its file, and makes of it what enrols agents and reads their credentials.

The node calls it once, when it is created. All nodes of a fleet have the same key.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from fairlead.errors import ConfigError
from fairlead.fleet.tokens.agent_keys import AgentKeys
from fairlead.fleet.tokens.enrolment_tokens import EnrolmentTokens
from fairlead.identity.credential import CredentialIssuer, CredentialVerifier
from fairlead.routing.agents.enrolment import Enrolment
from fairlead.settings import Settings
from fairlead.store.pipeliner import Pipeliner


def load_enrolment(settings: Settings, store: Pipeliner, now: Callable[[], int]) -> Enrolment | None:
    """None if no key is set: agents then have the shared token alone. Raises ConfigError."""
    if settings.issuer_key is None:
        return None
    try:
        issuer = CredentialIssuer(_seed(settings.issuer_key.read_bytes(), str(settings.issuer_key)), settings.audience)
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"cannot use issuer_key {settings.issuer_key} with audience {settings.audience!r}: {e}"
        ) from e
    verifier = CredentialVerifier([issuer.public], settings.audience)
    lifetime = int(settings.credential_lifetime)
    return Enrolment(
        issuer, verifier, EnrolmentTokens(store), AgentKeys(store), now, lambda: secrets.token_hex(16), lifetime
    )


def _seed(octets: bytes, source: str) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(octets, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise ConfigError(
            f"{source} holds no private key: expected an Ed25519 key in PEM without a passphrase "
            "(`openssl genpkey -algorithm ed25519` makes one)"
        ) from e
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{source} holds a key of another kind: expected Ed25519")
    return key.private_bytes_raw()
