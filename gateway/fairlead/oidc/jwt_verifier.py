"""Verifies a JWT of a trusted issuer (RFC 7519, with the precautions of RFC 8725) and reads the user out of it.

The algorithm has to be one of the issuer's list, all asymmetric; the key is looked up by its id among those that the
issuer publishes, and never taken from the JWT. It is pure: time and keys are arguments. Callers are `authorization`;
it never fetches anything.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jws import JWSRegistry

from fairlead.errors import Unauthorized
from fairlead.oidc.issuers_file import TrustedIssuer
from fairlead.oidc.key_set import KEY_ID_LIMIT, KeySet
from fairlead.oidc.user import OidcUser

TEXT_LIMIT: Final = 16_384
"""Bytes of a JWT. One with 200 groups has some 8 KiB."""
LEEWAY: Final = 30
"""Seconds by which the clocks of the issuer and of a node may differ."""
NAME_LIMIT: Final = 256
"""Characters of the name of a user or of a group."""
TYPES: Final = ("jwt", "at+jwt", "application/at+jwt")
"""Values of `typ`: ID tokens and access tokens (RFC 9068). An issuer signs other JWTs with the same key, such as those
of a logout."""
_FOREIGN_KEYS = ("jwk", "jku", "x5u", "x5c")


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str = ""
    typ: str = "JWT"


class _Issuer(msgspec.Struct, frozen=True):
    iss: str


class _Registry(JWSRegistry):
    """Accepts the one algorithm that it is made for. The base class warns of `EdDSA`, which issuers still write."""

    max_header_length = TEXT_LIMIT
    max_payload_length = TEXT_LIMIT

    def get_alg(self, name: str) -> Any:
        if name not in (self.allowed or ()):
            raise UnsupportedAlgorithmError(f"Algorithm of '{name}' is not allowed")
        return self.algorithms[name]


class UnknownIssuer(Unauthorized):
    """The JWT names an issuer that is not among `trusted`, their URLs. Only the log names those: whoever presents a JWT
    of somebody else need not learn whose would be good."""

    def __init__(self, claimed: str, trusted: Iterable[str]) -> None:
        super().__init__(
            f"the JWT is of the issuer {claimed[:200]!r}, which this gateway does not trust here: expected one of an "
            "issuer that an administrator has named (the log of the gateway names them)",
            reason="issuer",
        )
        self.trusted = tuple(trusted)


class UnknownKey(Unauthorized):
    """The issuer has published no such key yet. `key_id` names it; to fetch the keys again may help."""

    def __init__(self, issuer: TrustedIssuer, key_id: str) -> None:
        super().__init__(
            f"the JWT is signed with the key {key_id[:80]!r}, which the issuer {issuer.name} does not publish: "
            f"{issuer.advice}",
            reason="key",
        )
        self.issuer = issuer
        self.key_id = key_id


def looks_like_jwt(text: bytes) -> bool:
    return text.startswith(b"ey") and text.count(b".") == 2


def claimed_issuer(text: bytes) -> str:
    """The issuer that the JWT names, which is not verified yet. Raises Unauthorized."""
    if len(text) > TEXT_LIMIT:
        raise _malformed(f"it has {len(text)} bytes, and {TEXT_LIMIT} are the most")
    try:
        return msgspec.json.decode(_decoded(text.split(b".")[1]), type=_Issuer).iss
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        raise _malformed("it names no issuer") from e


@dataclass(frozen=True, slots=True)
class VerifiedClaims:
    """What a JWT says, the id of the key that has signed it, and when it expires."""

    claims: dict[str, Any]
    key_id: str
    expires: int


def verify(text: bytes, issuer: TrustedIssuer, keys: KeySet, now: float) -> OidcUser:
    """The user of the JWT. Raises Unauthorized, and UnknownKey for a key that is not among `keys`."""
    found = verify_claims(text, issuer, keys, now)
    return OidcUser(
        issuer.name, issuer.url, _user_name(found.claims, issuer), _groups(found.claims, issuer), found.key_id,
        found.expires,
    )  # fmt: skip


def verify_claims(text: bytes, issuer: TrustedIssuer, keys: KeySet, now: float) -> VerifiedClaims:
    """The claims of the JWT of anybody. Raises what `verify` raises."""
    header = _header(text)
    if header.alg not in issuer.algorithms:
        raise _refused(
            f"the JWT is signed with {header.alg[:32]!r}: expected {', '.join(issuer.algorithms)} for the issuer "
            f"{issuer.name}",
            "algorithm",
        )
    if not header.kid or len(header.kid) > KEY_ID_LIMIT:
        raise _malformed(f"its header names no key (`kid` of at most {KEY_ID_LIMIT} characters)")
    if header.kid in issuer.refused_keys:
        raise _refused(
            f"the JWT is signed with the key {header.kid!r}, which this gateway refuses: {issuer.advice}", "key"
        )
    if header.kid not in keys:
        raise UnknownKey(issuer, header.kid)
    key, only = keys[header.kid]
    # RFC 9864 names the curve, which `EdDSA` leaves open; a set of keys may say either.
    if only and only != header.alg and {only, header.alg} != {"EdDSA", "Ed25519"}:
        raise _refused(
            f"the JWT is signed with {header.alg}, but the key {header.kid!r} is for {only[:32]}", "algorithm"
        )
    try:
        signed = jws.deserialize_compact(
            text, key, registry=_Registry(algorithms=[header.alg], strict_check_header=False)
        )
        claims = msgspec.json.decode(signed.payload or b"", type=dict[str, Any])
    except (JoseError, ValueError, TypeError, RecursionError, msgspec.MsgspecError) as e:
        raise _refused(f"the JWT is not signed by the issuer {issuer.name}: {issuer.advice}", "signature") from e
    return VerifiedClaims(claims, header.kid, _check(claims, issuer, now))


def _header(text: bytes) -> _Header:
    octets = _decoded(text.partition(b".")[0])
    try:
        members = msgspec.json.decode(octets, type=dict[str, Any])
        header = msgspec.convert(members, _Header)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        raise _malformed("its header is not JSON with `alg` and `kid`") from e
    brought = [name for name in _FOREIGN_KEYS if name in members]
    if brought:
        raise _refused(
            f"the JWT brings a key of its own ({brought[0]}): expected only the id of a key of the issuer", "key"
        )
    if "crit" in members or "b64" in members:
        raise _malformed("its header has `crit`, which names extensions that are not known here")
    if header.typ.lower() not in TYPES:
        raise _refused(f"the JWT is of the type {header.typ[:64]!r}: expected an ID token or an access token", "type")
    return header


def _check(claims: dict[str, Any], issuer: TrustedIssuer, now: float) -> int:
    """When the JWT expires. Raises Unauthorized if it is not for us, or not now."""
    if claims.get("iss") != issuer.url:
        raise _refused(f"the JWT is not of the issuer {issuer.name}", "issuer")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if issuer.audience not in audiences:
        raise _refused(
            f"the JWT is for {str(audience)[:80]!r}: expected the audience {issuer.audience!r} (log in with its "
            "client id)",
            "audience",
        )
    expires = _time(claims, "exp")
    if expires is None:
        raise _malformed("it has no `exp`, the time at which it expires")
    if expires + LEEWAY <= now:
        raise _refused(f"the JWT expired {now - expires:.0f} s ago: {issuer.advice}", "expired")
    for claim in ("nbf", "iat"):
        begins = _time(claims, claim)
        if begins is not None and begins - LEEWAY > now:
            raise _refused(
                f"the JWT is not valid for another {begins - now:.0f} s: compare the clocks of the gateway and of the "
                f"issuer {issuer.name}",
                "not_yet_valid",
            )
    return math.floor(expires)


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
        raise _malformed(f"its `{name}` is not a time in seconds")
    return float(value)


def _user_name(claims: dict[str, Any], issuer: TrustedIssuer) -> str:
    names = _names([claims.get(issuer.user_claim)])
    if not names:
        raise _refused(
            f"the JWT has no usable claim {issuer.user_claim!r}: expected the user's name, 1 to {NAME_LIMIT} printable "
            "characters (ask for the scope that brings it)",
            "user",
        )
    if issuer.user_claim == "email" and claims.get("email_verified", True) is not True:
        raise _refused(f"the issuer {issuer.name} has not verified the address {names[0][:80]!r}", "user")
    return names[0]


def _groups(claims: dict[str, Any], issuer: TrustedIssuer) -> frozenset[str]:
    """The groups; those without a usable name are left out, as they give no right."""
    found = claims.get(issuer.groups_claim) if issuer.groups_claim else None
    return frozenset(_names(found if isinstance(found, list) else [found]))


def _names(found: list[Any]) -> list[str]:
    """Those that can be names of users and groups."""
    texts = [one for one in found if isinstance(one, str) and 0 < len(one) <= NAME_LIMIT]
    return [one for one in texts if one.isprintable() and one == one.strip()]


def _decoded(part: bytes) -> bytes:
    try:
        return base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as e:
        raise _malformed("a part of it is not base64url") from e


def _malformed(problem: str) -> Unauthorized:
    return _refused(
        f"malformed JWT, {problem}: expected an ID token or an access token of a trusted issuer", "malformed"
    )


def _refused(message: str, reason: str) -> Unauthorized:
    """`reason` is for programs and tests."""
    return Unauthorized(message, reason=reason)
