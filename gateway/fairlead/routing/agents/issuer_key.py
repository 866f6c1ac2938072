"""Reads the issuer's key from its file, and makes of it what enrols agents and reads their credentials.

The node calls it once, when it is created. All nodes of a fleet have the same key.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from fairlead.errors import ConfigError
from fairlead.fleet.tokens.agent_keys import AgentKeys
from fairlead.fleet.tokens.enrolment_tokens import EnrolmentTokens
from fairlead.identity.agent_key import seed_of_pem
from fairlead.identity.credential import CredentialIssuer, CredentialVerifier
from fairlead.routing.agents.enrolment import Enrolment
from fairlead.settings import Settings
from fairlead.store.pipeliner import Pipeliner


def load_enrolment(settings: Settings, store: Pipeliner, now: Callable[[], int]) -> Enrolment | None:
    """None if no key is set: agents then have the shared token alone. Raises ConfigError."""
    if settings.issuer_key is None:
        return None
    try:
        issuer = CredentialIssuer(
            seed_of_pem(settings.issuer_key.read_bytes(), str(settings.issuer_key)), settings.audience
        )
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"cannot use issuer_key {settings.issuer_key} with audience {settings.audience!r}: {e}"
        ) from e
    verifier = CredentialVerifier([issuer.public], settings.audience)
    lifetime = int(settings.credential_lifetime)
    return Enrolment(
        issuer, verifier, EnrolmentTokens(store), AgentKeys(store), now, lambda: secrets.token_hex(16), lifetime
    )
