"""The keys of an issuer: reads a JSON Web Key Set (RFC 7517) and keeps the keys that can verify signatures.

A set may have keys that Fairlead cannot use, such as those for encryption or of an unknown type: they are left out, as
the RFC says. It is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey

from fairlead.errors import Unavailable

KEYS_LIMIT: Final = 100
KEY_ID_LIMIT: Final = 256
RSA_BITS: Final = 2048
"""Smaller RSA keys are not accepted (NIST SP 800-131A)."""

Key = RSAKey | ECKey | OKPKey
KeySet = Mapping[str, tuple[Key, str]]
"""The keys by their ids, each with the one algorithm that it is for, or "" if the set names none."""


class _JwkSet(msgspec.Struct):
    keys: list[dict[str, Any]]


def parse_key_set(body: bytes, issuer: str) -> KeySet:
    """Raises Unavailable if the body is no set with a usable key: the keys that are known stay in use then."""
    try:
        found = msgspec.json.decode(body, type=_JwkSet).keys
    except (msgspec.MsgspecError, RecursionError) as e:
        raise Unavailable(f"the keys of {issuer} are not a JSON Web Key Set: {e}") from e
    keys: dict[str, tuple[Key, str]] = {}
    for one in found[:KEYS_LIMIT]:
        id, key = one.get("kid"), _usable(one)
        if key is not None and isinstance(id, str) and 0 < len(id) <= KEY_ID_LIMIT and id not in keys:
            algorithm = one.get("alg", "")
            keys[id] = key, algorithm if isinstance(algorithm, str) else ""
    if not keys:
        raise Unavailable(f"the {len(found)} keys of {issuer} are unusable: expected RSA, EC or Ed25519 keys with ids")
    return keys


def _usable(one: dict[str, Any]) -> Key | None:
    """The public key; None if it is not for signatures, or symmetric, or too small."""
    operations = one.get("key_ops", ["verify"])
    if one.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    if one.get("kty") not in ("RSA", "EC", "OKP") or "d" in one:
        return None
    if one["kty"] == "RSA" and len(str(one.get("n", ""))) * 6 < RSA_BITS:
        return None
    try:
        key = JWKRegistry.import_key({name: one[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in one})
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, RSAKey):
        return key if key.raw_value.key_size >= RSA_BITS else None
    if isinstance(key, OKPKey):
        return key if one.get("crv") == "Ed25519" else None
    return key if isinstance(key, ECKey) else None
