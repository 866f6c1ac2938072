"""The Ed25519 key of an agent: it signs, and others verify with its public half.

The agent makes the key from 32 random bytes, which never leave it. A key is known by its thumbprint (RFC 7638), so that
nobody has to name keys. Both ends of a link use this module; it is pure. The package `cryptography` is imported when
the first key is used, because agents without a key need not pay for it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

from fairlead.errors import ConfigError, InvalidRequest

SEED_BYTES: Final = 32
PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


class AgentKey:
    """A private key, made of `seed`, which must be random and stay secret."""

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if len(seed) != SEED_BYTES:
            raise ValueError(f"an Ed25519 key takes {SEED_BYTES} random bytes, got {len(seed)}")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, octets: bytes) -> bytes:
        return self._key.sign(octets)


def verifies(public: bytes, signature: bytes, octets: bytes) -> bool:
    """Whether `signature` is that of the key with this public half over `octets`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, octets)
    except (InvalidSignature, ValueError):
        return False
    return True


def thumbprint(public: bytes) -> str:
    """The thumbprint of RFC 7638, as RFC 8037 §2 defines it for Ed25519: 43 characters."""
    members = f'{{"crv":"Ed25519","kty":"OKP","x":"{base64url(public)}"}}'
    return base64url(hashlib.sha256(members.encode()).digest())


def public_key(text: str) -> bytes:
    """The public half in base64url, as a JSON Web Key has it in `x`. Raises InvalidRequest."""
    octets = from_base64url(text, PUBLIC_BYTES)
    if octets is None:
        raise InvalidRequest(
            f"invalid public key {text[:60]!r}: expected the {PUBLIC_BYTES} bytes of an Ed25519 key in base64url "
            "without padding",
            field="key",
        )
    return octets


def seed_of_pem(pem: bytes, source: str) -> bytes:
    """The seed of a private key in PEM, without a passphrase. `source` names it in messages. Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise ConfigError(
            f"{source} holds no private key: expected an Ed25519 key in PEM without a passphrase "
            "(`openssl genpkey -algorithm ed25519` makes one)"
        ) from e
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{source} holds a key of another kind: expected Ed25519")
    return key.private_bytes_raw()


def pem_of_seed(seed: bytes) -> bytes:
    """The private key made of `seed` in PEM (PKCS #8), without a passphrase."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.from_private_bytes(seed)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def base64url(octets: bytes) -> str:
    """Base64url without padding (RFC 7515 §2)."""
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def from_base64url(text: str, size: int) -> bytes | None:
    """The `size` bytes that `text` encodes; None if it is anything else, even another spelling of the same bytes."""
    try:
        octets = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return octets if len(octets) == size and base64url(octets) == text else None
