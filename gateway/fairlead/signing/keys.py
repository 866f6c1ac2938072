"""Ed25519 keys: public keys in OpenSSH's format, private keys in files of PEM or OpenSSH.

Both formats are what `ssh-keygen -t ed25519` and `openssl genpkey -algorithm ed25519` write, so no tool of ours is
needed to make a key. A key's id is the first 16 octets of the SHA-256 of its 32 octets; people see it as 32 hex digits.
The package `cryptography` is imported when the first key is used: an agent without trusted keys never pays for it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fairlead.errors import ConfigError
from fairlead.signing.command_signature import KEY_ID_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM: Final = "ssh-ed25519"
PUBLIC_BYTES: Final = 32
_OPENSSH: Final = struct.pack("!I", len(ALGORITHM)) + ALGORITHM.encode() + struct.pack("!I", PUBLIC_BYTES)
"""What precedes the 32 octets of the key in OpenSSH's encoding."""


def key_id(public: bytes) -> bytes:
    """The id of the key with these 32 octets."""
    return hashlib.sha256(public).digest()[:KEY_ID_BYTES]


@dataclass(slots=True)
class PublicKey:
    """A key that verifies. `comment` is whatever follows it in its line, for people."""

    octets: bytes
    comment: str = ""
    id: bytes = field(init=False)
    _key: Ed25519PublicKey | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.id = key_id(self.octets)

    def verifies(self, signature: bytes, octets: bytes) -> bool:
        """Whether `signature` is this key's signature of `octets`."""
        from cryptography.exceptions import InvalidSignature

        if self._key is None:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

            self._key = Ed25519PublicKey.from_public_bytes(self.octets)
        try:
            self._key.verify(signature, octets)
        except InvalidSignature:
            return False
        return True

    def line(self) -> str:
        """The key as one line of OpenSSH's format."""
        encoded = base64.b64encode(_OPENSSH + self.octets).decode()
        return f"{ALGORITHM} {encoded} {self.comment}".rstrip()


class PrivateKey:
    """A key that signs, held in this process. Made by `load_private_key` and `generate`."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())

    def sign(self, octets: bytes) -> bytes:
        return self._key.sign(octets)

    def pem(self) -> bytes:
        """The key without encryption, as PKCS #8 in PEM."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def generate() -> PrivateKey:
    """A new key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return PrivateKey(Ed25519PrivateKey.generate())


def load_private_key(octets: bytes, source: str) -> PrivateKey:
    """The key in a file's content; `source` names the file in errors. Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    load = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in octets else load_pem_private_key
    try:
        key = load(octets, None)
    except TypeError as e:
        raise ConfigError(
            f"{source} is encrypted with a passphrase: expected a key without one, or a program that signs"
        ) from e
    except (ValueError, UnsupportedAlgorithm) as e:
        raise ConfigError(
            f"{source} holds no private key: expected an Ed25519 key in PEM (`fairlead keys generate` makes one)"
        ) from e
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{source} holds a key of another kind: expected Ed25519 (`fairlead keys generate` makes one)"
        )
    return PrivateKey(key)


def parse_public_keys(text: str, source: str) -> list[PublicKey]:
    """The keys in lines of OpenSSH's format; empty lines and those that begin with # are skipped. Raises ConfigError,
    which names the line, and when there is no key."""
    keys: list[PublicKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        keys.append(_parse(line.split(None, 2), f"{source}, line {number}"))
    if not keys:
        raise ConfigError(f"{source} holds no key: expected lines `{ALGORITHM} BASE64 COMMENT`")
    if len({one.id for one in keys}) != len(keys):
        raise ConfigError(f"{source} holds a key twice: expected each key once")
    return keys


def _parse(words: list[str], where: str) -> PublicKey:
    try:
        octets = base64.b64decode(words[1], validate=True) if words[0] == ALGORITHM else b""
    except (IndexError, binascii.Error):
        octets = b""
    if len(octets) != len(_OPENSSH) + PUBLIC_BYTES or not octets.startswith(_OPENSSH):
        raise ConfigError(f"{where} is no Ed25519 public key: expected `{ALGORITHM} BASE64 COMMENT`")
    return PublicKey(octets[len(_OPENSSH) :], words[2].strip() if len(words) > 2 else "")
