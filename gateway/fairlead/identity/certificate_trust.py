"""What the files of clients' authorities and of revocation lists say about certificates that were verified before.

OpenSSL judges a certificate once, in the handshake. When the files have changed, `routing` asks for each open link
whether it would still be opened, by what a link remembers of its certificate: who has issued it, and its serial number.
So a change is judged without the certificates, which may be tens of thousands, and also for sessions of TLS that were
resumed. It is pure.

A link is closed if its certificate is on a list, or if an authority that may have issued it is gone from the file.
Certificates of an authority that is not in the file itself, because the agent presents the chain to it, are closed when
any authority is gone, since the rest of the chain is not known any more; the next handshake decides about them.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fairlead.errors import ConfigError

PART: Final = 500
"""Entries of a revocation list that are read without a pause: half a millisecond."""
ISSUERS_REMEMBERED: Final = 1_024
_CERTIFICATES: Final = (b"CERTIFICATE", b"X509 CERTIFICATE")
_LISTS: Final = (b"X509 CRL",)
_UNREADABLE: Final = (
    ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)  # fmt: skip


class Issuer(NamedTuple):
    """Who has issued a certificate or a list: the name, as OpenSSL compares it, and the id of the key, b"" for none."""

    name: str
    key_id: bytes

    def may_be(self, other: Issuer) -> bool:
        if self.name != other.name:
            return False
        return not self.key_id or not other.key_id or self.key_id == other.key_id


class CertificateOrigin(NamedTuple):
    """What a link remembers of its client certificate."""

    issuer: Issuer
    serial: int


class _Authority(NamedTuple):
    issuer: Issuer
    key: bytes
    """The digest of its public key."""
    root: bool
    """Whether it has issued its own certificate, so that a chain may end with it."""


@dataclass(frozen=True, slots=True)
class CertificateTrust:
    """`digest` is that of the files, as `ServerCertificate` has it."""

    digest: bytes = b""
    authorities: frozenset[_Authority] = frozenset()
    revoked: Mapping[Issuer, frozenset[int]] = field(default_factory=dict)

    @property
    def revoked_count(self) -> int:
        return sum(map(len, self.revoked.values()))

    def lists(self, origin: CertificateOrigin) -> bool:
        """Whether the certificate is on a revocation list."""
        return any(origin.serial in serials for one, serials in self.revoked.items() if one.may_be(origin.issuer))

    def roots_of(self, issuer: Issuer) -> frozenset[bytes]:
        """The keys of the authorities in the file that may have issued a certificate, and that end its chain."""
        return frozenset(one.key for one in self.authorities if one.root and one.issuer.may_be(issuer))


class TrustChange:
    """From what held when links were opened, to what holds now."""

    def __init__(self, before: CertificateTrust, now: CertificateTrust) -> None:
        self._before = before
        self._now = now
        self.gone = len(before.authorities - now.authorities)
        """How many authorities are not in the file any more."""
        self._untrusted: dict[Issuer, str] = {}

    def refusal(self, origin: CertificateOrigin) -> str:
        """Why a link of this certificate is closed; "" if it stays."""
        if self._now.lists(origin):
            return "the client certificate was revoked by its authority: connect with another one"
        found = self._untrusted.get(origin.issuer)
        if found is None:
            found = self._untrusted[origin.issuer] = self._of_issuer(origin.issuer)
        return found

    def _of_issuer(self, issuer: Issuer) -> str:
        if not self.gone:
            return ""
        before, now = self._before.roots_of(issuer), self._now.roots_of(issuer)
        if before and before <= now:
            return ""
        if before and not now:
            return "the authority of the client certificate is not trusted any more: connect with another certificate"
        return "an authority of client certificates is not trusted any more: connect again to show the certificate"


def origin_of(certificate: x509.Certificate) -> CertificateOrigin:
    """What a link remembers of this certificate. Raises what `cryptography` raises for one that it cannot read."""
    return CertificateOrigin(
        _issuer(_name(certificate.issuer), _key_id(certificate.extensions)), certificate.serial_number
    )


def read_trust(
    authorities: bytes, lists: bytes, digest: bytes, pause: Callable[[], object] = lambda: None
) -> CertificateTrust:
    """What the two files say, of which `lists` may be empty. `pause` is called after each part of a long list, so that
    a thread leaves the interpreter to others. Raises ConfigError."""
    try:
        found = frozenset(
            _authority(x509.load_pem_x509_certificate(one)) for one in _blocks(authorities, _CERTIFICATES)
        )
        revoked: defaultdict[Issuer, set[int]] = defaultdict(set)
        for text in (*_blocks(authorities, _LISTS), *_blocks(lists, _LISTS)):
            one = x509.load_pem_x509_crl(text)
            serials = revoked[Issuer(_name(one.issuer), _key_id(one.extensions))]
            for count, entry in enumerate(one, 1):
                serials.add(entry.serial_number)
                if not count % PART:
                    pause()
    except _UNREADABLE as e:
        raise ConfigError(
            f"the authorities of clients or their revocation lists are not understood ({e}): expected X.509 in PEM"
        ) from e
    return CertificateTrust(digest, found, {issuer: frozenset(serials) for issuer, serials in revoked.items()})


def _blocks(text: bytes, labels: tuple[bytes, ...]) -> Iterator[bytes]:
    """The blocks of PEM with these labels. A regular expression would take 40 ms for a list of 5 MB."""
    for label in labels:
        begin, end, at = b"-----BEGIN %b-----" % label, b"-----END %b-----" % label, 0
        while (start := text.find(begin, at)) >= 0 and (stop := text.find(end, start)) >= 0:
            at = stop + len(end)
            yield text[start:at]


def _authority(certificate: x509.Certificate) -> _Authority:
    public = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    try:
        key_id = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    except x509.ExtensionNotFound:
        key_id = b""
    name = _name(certificate.subject)
    return _Authority(Issuer(name, key_id), hashlib.sha256(public).digest(), name == _name(certificate.issuer))


def _key_id(extensions: x509.Extensions) -> bytes:
    try:
        return extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier or b""
    except x509.ExtensionNotFound:
        return b""


@lru_cache(ISSUERS_REMEMBERED)
def _issuer(name: str, key_id: bytes) -> Issuer:
    """One object for all links whose certificates have the same issuer."""
    return Issuer(name, key_id)


def _name(name: x509.Name) -> str:
    """Without case, and with single spaces, as OpenSSL compares names."""
    return " ".join(name.rfc4514_string().casefold().split())
