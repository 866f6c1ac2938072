"""The certificate authorities of clients: a port that has them asks each client for a certificate.

`ServerCertificate` applies them to its contexts and reads their files again with its own. A session ticket is bound to
the content of these files: it has the client's certificate in it, which nobody verifies again when the session is
resumed, and a ticket of another port would have none. So a changed authority or revocation list costs a full handshake.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.carrier.tls import openssl
from fairlead.errors import ConfigError

CHAIN_LIMIT: Final = 16 << 10
"""Bytes of a client's certificates. OpenSSL would take 100 KB from anybody."""


@dataclass(frozen=True, slots=True)
class ClientAuthorities:
    """`authorities` and `revoked` are PEM files: certificates, and certificate revocation lists. With lists, each
    authority that has issued a client's certificate needs one that is current. If a certificate is not `required`, a
    client may present none, but never one that is not valid."""

    authorities: Path
    revoked: Path | None = None
    required: bool = True

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.authorities,) if self.revoked is None else (self.authorities, self.revoked)

    def apply(self, context: ssl.SSLContext, digest: bytes) -> None:
        """Have `context` ask for certificates. `digest` is that of all files. Raises ConfigError."""
        self._load(context, self.authorities, "certificate authorities")
        if not context.cert_store_stats()["x509_ca"]:
            raise ConfigError(
                f"the file of client authorities {self.authorities} has no certificate of an authority: expected the "
                "ones that issue the certificates of clients, in PEM"
            )
        if self.revoked is not None:
            self._load(context, self.revoked, "certificate revocation lists")
            if not context.cert_store_stats()["crl"]:
                raise ConfigError(f"the file {self.revoked} has no revocation list: expected `X509 CRL` in PEM")
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        context.verify_mode = ssl.CERT_REQUIRED if self.required else ssl.CERT_OPTIONAL
        openssl.bind_sessions(context, digest)
        openssl.limit_chain(context, CHAIN_LIMIT)

    def _load(self, context: ssl.SSLContext, path: Path, what: str) -> None:
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:  # an SSLError is an OSError, but has its reason elsewhere
            reason = getattr(error, "reason", None) or error.strerror or error
            raise ConfigError(f"cannot use the file of {what} {path} ({reason}): expected PEM") from error
