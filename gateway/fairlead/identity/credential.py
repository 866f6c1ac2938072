"""An agent's credential: a signed statement of the platform that an id belongs to a key, for a short time.

It is a JWT (RFC 7519) with the public half of the key inside (`cnf.jwk`, RFC 7800), signed with Ed25519. It is no
secret: whoever presents it also proves possession of the key (`proof`). `CredentialIssuer` makes credentials and
`CredentialVerifier` reads them; several keys of issuers may be valid at a time, so that one can replace another.

The algorithm is fixed, and the header must have exactly the members that the issuer writes. A credential cannot name
its own algorithm, bring a key with it, or have one fetched. This module is pure: times are arguments, in whole seconds
of Unix time as in a JWT. Used by the gateway; an agent treats its credential as opaque text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from joserfc import jwt
from joserfc.errors import BadSignatureError, ExpiredTokenError, InvalidClaimError, JoseError
from joserfc.jwk import OKPKey
from joserfc.jws import JWSRegistry

from fairlead.errors import InvalidRequest, Unauthorized
from fairlead.identity.agent_key import base64url, public_key, thumbprint
from fairlead.tenant import TENANT, local_id, qualified, tenant_of
from fairlead.wire.ids import check_agent_id

ALGORITHM: Final = "Ed25519"
"""The name of RFC 9864. `EdDSA` would leave the curve open."""
TYPE: Final = "fairlead-agent+jwt"
"""A type of its own (RFC 8725 §3.11): no other JWT that the same key may sign is valid as a credential."""
TEXT_LIMIT: Final = 2_048
"""Characters of a credential; one with the longest id, audience and key id, and LABELS_LIMIT of labels, has fewer."""
LABELS_LIMIT: Final = 512
"""Bytes of an agent's labels, as JSON, that a credential carries."""
LEEWAY: Final = 60
"""Seconds by which the clocks of nodes may differ (RFC 7519 §4.1.4: a few minutes at most)."""
LIFETIME_LIMIT: Final = 7 * 24 * 3600
"""Seconds from issue to expiry. A credential that outlives it was not made by `CredentialIssuer`."""
_AUDIENCE = re.compile(r"[A-Za-z0-9._:/-]{1,128}\Z")


class _ConfirmationKey(msgspec.Struct, frozen=True):
    kty: Literal["OKP"]
    crv: Literal["Ed25519"]
    x: str


class _Confirmation(msgspec.Struct, frozen=True):
    jwk: _ConfirmationKey


class _Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    sub: str
    aud: str
    iat: int
    nbf: int
    exp: int
    jti: str
    cnf: _Confirmation
    labels: dict[str, str] = {}
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class AgentCredential:
    """What a valid credential says. `id` is its own, for logs; `agent` is qualified by its tenant, `public` is the
    agent's key, `labels` are those that its enrolment token has granted, and `issuer` is the thumbprint of the key that
    has signed it."""

    id: str
    agent: str
    public: bytes
    issued: int
    expires: int
    labels: Mapping[str, str] = field(default_factory=dict)
    issuer: str = ""

    @property
    def thumbprint(self) -> str:
        return thumbprint(self.public)


class CredentialIssuer:
    """Signs credentials with the key that `seed` makes, for the nodes of one fleet (`audience`)."""

    def __init__(self, seed: bytes, audience: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if _AUDIENCE.match(audience) is None:
            raise ValueError(
                f"invalid audience {audience[:140]!r}: expected 1 to 128 characters of A-Z a-z 0-9 . _ : / -"
            )
        private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = private.public_key().public_bytes_raw()
        self._key = OKPKey.import_key(private)
        self._header = _header(thumbprint(self.public))
        self._audience = audience

    def issue(
        self, id: str, agent: str, public: bytes, now: int, lifetime: int, labels: Mapping[str, str] | None = None
    ) -> str:
        """A credential for `agent`, whose id is qualified by its tenant, with the key `public`, valid from `now` for
        `lifetime` seconds. `id` is unique. The `labels` take LABELS_LIMIT bytes at most."""
        if not 0 < lifetime <= LIFETIME_LIMIT:
            raise ValueError(f"invalid lifetime {lifetime}: expected 1 to {LIFETIME_LIMIT} seconds")
        key = _ConfirmationKey("OKP", "Ed25519", base64url(public))
        claims = _Claims(
            sub=check_agent_id(local_id(agent)),
            aud=self._audience,
            iat=now,
            nbf=now,
            exp=now + lifetime,
            jti=id,
            cnf=_Confirmation(key),
            labels=dict(labels or {}),
            tenant=tenant_of(agent),
        )
        return jwt.encode(self._header, msgspec.to_builtins(claims), self._key, algorithms=[ALGORITHM])


class CredentialVerifier:
    """Reads credentials for `audience` that are signed with one of the issuers' keys, given by their public halves."""

    def __init__(self, issuers: Iterable[bytes], audience: str) -> None:
        keys = {thumbprint(public): _verification_key(public) for public in issuers}
        self._headers = {key_id: _header(key_id) for key_id in keys}
        self._keys = keys
        self._audience = audience
        self._registry = JWSRegistry(algorithms=[ALGORITHM])

    def verify(self, text: str, now: int, *, may_be_expired: bool = False) -> AgentCredential:
        """What the credential says. Raises Unauthorized; its detail `reason` is malformed, signature, audience,
        not_yet_valid or expired. `may_be_expired` is for a renewal, which also asks whether the key is still bound.
        """
        if len(text) > TEXT_LIMIT or not text.isascii():
            raise _malformed()
        try:
            issuer, claims = self._signed_claims(text)
            agent, public = check_agent_id(claims.sub), public_key(claims.cnf.jwk.x)
            if claims.tenant and TENANT.match(claims.tenant) is None:
                raise ValueError(f"invalid tenant {claims.tenant[:64]!r}")
        except Unauthorized:
            raise
        except BadSignatureError as e:
            raise _not_signed() from e
        except (JoseError, ValueError, TypeError, InvalidRequest) as e:
            raise _malformed() from e
        self._check_claims(claims, min(now, claims.exp - 1) if may_be_expired else now)
        agent = qualified(claims.tenant, agent)
        return AgentCredential(claims.jti, agent, public, claims.iat, claims.exp, claims.labels, issuer)

    def _signed_claims(self, text: str) -> tuple[str, _Claims]:
        token = jwt.decode(text, self._key, algorithms=[ALGORITHM], registry=self._registry)
        return str(token.header["kid"]), msgspec.convert(token.claims, _Claims)

    def _key(self, token: Any) -> OKPKey:
        """The key that has to have signed, for joserfc, which asks before it verifies."""
        header = token.headers()
        key_id = header.get("kid")
        if not isinstance(key_id, str) or header != self._headers.get(key_id):
            raise Unauthorized(
                "the credential is not signed by an issuer of this fleet: enrol again", reason="signature"
            )
        return self._keys[key_id]

    def _check_claims(self, claims: _Claims, now: int) -> None:
        times = jwt.JWTClaimsRegistry(now, LEEWAY, aud={"essential": True, "value": self._audience})
        try:
            times.validate({"aud": claims.aud, "nbf": claims.nbf, "exp": claims.exp})
        except ExpiredTokenError as e:
            raise Unauthorized("the credential has expired: renew it, or enrol again", reason="expired") from e
        except InvalidClaimError as e:
            if e.claim == "nbf":
                raise Unauthorized(
                    f"the credential is not valid for another {claims.nbf - now} s: compare the clocks of the nodes",
                    reason="not_yet_valid",
                ) from e
            raise Unauthorized("the credential is for another fleet: enrol here", reason="audience") from e
        if claims.exp - claims.iat > LIFETIME_LIMIT:
            raise _malformed()


def _header(key_id: str) -> dict[str, str]:
    return {"alg": ALGORITHM, "kid": key_id, "typ": TYPE}


def _verification_key(public: bytes) -> OKPKey:
    return OKPKey.import_key({"kty": "OKP", "crv": ALGORITHM, "x": base64url(public)})


def _not_signed() -> Unauthorized:
    return Unauthorized("the credential is not signed by an issuer of this fleet: enrol again", reason="signature")


def _malformed() -> Unauthorized:
    return Unauthorized("malformed credential: expected one that this fleet has issued to an agent", reason="malformed")
