"""What a client certificate says: the id of its agent, its key, and from when to when it is valid.

The link endpoint calls it for the certificate of a TLS connection, or for one that a trusted proxy passes on. Whoever
calls it has had the certificate verified against the certificate authorities; this module only reads it. The id is
either the one common name of the subject, or what follows a prefix in the one URI of the subject's alternative names,
such as `spiffe://example.com/agents/`. Nothing else names an agent, so that no certificate names two. It is pure.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fairlead.errors import InvalidRequest, Unauthorized
from fairlead.identity.agent_key import base64url
from fairlead.identity.authenticated_agent import AuthenticatedAgent
from fairlead.identity.certificate_trust import origin_of
from fairlead.wire.ids import check_agent_id

COMMON_NAME: Final = "cn"
"""The setting by which the common name is the id."""
LEEWAY: Final = 60
"""Seconds by which the clocks of nodes may differ, as for credentials."""
REMEMBERED: Final = 1_024
"""Certificates that are remembered, at some 700 bytes each: agents come back with the same one."""
_CERTIFICATE: Final = "client certificate"
_UNREADABLE: Final = (
    ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)  # fmt: skip
"""What cryptography raises for one that it cannot read."""


@dataclass(frozen=True, slots=True)
class CertificateId:
    """Where the id of an agent is in its certificate: `source` is `cn`, or the prefix of a URI."""

    source: str = COMMON_NAME

    def agent(self, certificate: bytes, now: int, *, forwarded: bool = False) -> AuthenticatedAgent:
        """The agent of a verified certificate in DER. Raises Unauthorized if it names none, or is not valid now: a
        resumed session of TLS shows a certificate that was verified up to two hours before. If a proxy has `forwarded`
        it, only the proxy knows whose authorities count."""
        found = _read(certificate, self.source, forwarded)
        if isinstance(found, str):
            raise Unauthorized(found, reason="certificate")
        if now > found.expires + LEEWAY:
            raise Unauthorized(
                f"the client certificate of agent {found.agent} expired {now - found.expires} s ago: renew it",
                reason="expired",
            )
        if now < found.issued - LEEWAY:
            raise Unauthorized(
                f"the client certificate of agent {found.agent} is not valid for another {found.issued - now} s: "
                "compare the clocks of the authority and of the gateway",
                reason="not_yet_valid",
            )
        return found


@lru_cache(REMEMBERED)
def _read(der: bytes, source: str, forwarded: bool) -> AuthenticatedAgent | str:
    """The agent that the certificate names, or why it names none."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        public = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        names = _common_names(certificate) if source == COMMON_NAME else _uris(certificate)
        origin = None if forwarded else origin_of(certificate)
    except _UNREADABLE as e:
        return f"malformed client certificate ({e}): expected an X.509 certificate with a usual key"
    what = "common name" if source == COMMON_NAME else "URI among its alternative names"
    if len(names) != 1:
        return f"the client certificate has {len(names)} of what names its agent: expected one {what}"
    prefix = "" if source == COMMON_NAME else source
    agent = names[0].removeprefix(prefix)
    if not names[0].startswith(prefix):
        return f"the client certificate names {names[0][:200]!r}: expected a URI that begins with {prefix}"
    try:
        check_agent_id(agent)
    except InvalidRequest as e:
        return f"the client certificate names no agent, as its {what} gives an {e.message}"
    issued, expires = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    key = base64url(hashlib.sha256(public).digest())
    return AuthenticatedAgent(
        agent, key, int(issued.timestamp()), int(expires.timestamp()), _CERTIFICATE, True, origin=origin
    )


def _common_names(certificate: x509.Certificate) -> list[str]:
    found = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return [one.value if isinstance(one.value, str) else "" for one in found]


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)
