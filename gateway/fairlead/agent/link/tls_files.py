"""The files of an agent's TLS: its client certificate, the key of that, and the authorities that it trusts.

Given to `Agent` as `ssl`, in place of a context. It is called before each attempt to connect, and reads the files again
when they have changed: a certificate that was renewed is presented by the next link, and the one that is open stays.
Files that cannot be used, as while a renewal has written one of two, leave what was read before in use.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl as tls
from pathlib import Path

from fairlead.errors import ConfigError

logger = logging.getLogger("fairlead.agent")


class TlsFiles:
    def __init__(
        self,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        authorities: str | os.PathLike[str] | None = None,
    ) -> None:
        """PEM files. `certificate` may have the certificates of intermediate authorities behind it, and `key` has no
        passphrase. `authorities` are trusted in place of the system's. Raises ConfigError for one of certificate and
        key without the other."""
        if (certificate is None) != (key is None):
            raise ConfigError("a client certificate and its key belong together: expected both tls_cert and tls_key")
        self.certificate, self.key, self.authorities = (
            None if file is None else Path(file) for file in (certificate, key, authorities)
        )
        self._seen = b""
        self._context: tls.SSLContext | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(file for file in (self.certificate, self.key, self.authorities) if file is not None)

    def __call__(self) -> tls.SSLContext:
        """The context for the next connection. Raises ConfigError if the files have never been usable."""
        try:
            seen = hashlib.sha256(b"".join(hashlib.sha256(self._read(file)).digest() for file in self.paths)).digest()
            if self._context is None or seen != self._seen:
                made = self._make()
                if self._context is not None:
                    logger.info("read the files of TLS again: %s", ", ".join(map(str, self.paths)))
                self._context, self._seen = made, seen
        except ConfigError as e:
            if self._context is None:
                raise
            logger.warning("%s; what was read before stays in use", e.message)
        return self._context

    def _read(self, file: Path) -> bytes:
        try:
            return file.read_bytes()
        except OSError as e:
            raise ConfigError(f"the TLS file {file} cannot be read ({e.strerror or e}): check its permissions") from e

    def _make(self) -> tls.SSLContext:
        try:
            made = tls.create_default_context(cafile=self.authorities)
        except (OSError, tls.SSLError) as e:
            raise ConfigError(f"invalid ca_file {self.authorities}: {e}; expected certificates in PEM") from e
        if self.certificate is None or self.key is None:
            return made
        try:
            made.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except tls.SSLError as e:
            what = (
                f"the key {self.key} does not belong to the certificate {self.certificate}"
                if e.reason == "KEY_VALUES_MISMATCH"
                else f"cannot use tls_cert {self.certificate} with tls_key {self.key} ({e.reason})"
            )
            raise ConfigError(f"{what}: expected two PEM files, the certificate with its chain first") from e
        except (OSError, ValueError) as e:
            raise ConfigError(f"cannot use tls_cert {self.certificate} and tls_key {self.key}: {e}") from e
        return made


def _no_passphrase() -> str:
    """Raise ValueError for an encrypted key, because OpenSSL would ask for a passphrase on the terminal."""
    raise ValueError("the key is encrypted: expected one without a passphrase")
