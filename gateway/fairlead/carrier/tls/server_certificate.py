"""The certificate and key of a server: read at the start, and again, always together, when their files change.

`uvicorn_server` gives it to the acceptor, which asks for `context` at each new connection. A connection keeps the
context with which it began, so a reload drops no link. When the new files cannot be used, what was read before stays in
use, and the error is logged and counted. Kubernetes replaces the files of a secret by changing a symbolic link above
them, so their contents are compared and not their directory watched. They are read and parsed in a thread, because a
revocation list may have megabytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from fairlead.carrier.tls import openssl, ticket_keys
from fairlead.carrier.tls.client_authorities import ClientAuthorities
from fairlead.carrier.tls.ticket_key_chain import TicketKeyChain, process_chain
from fairlead.configuration.watched_file import file_signature
from fairlead.errors import ConfigError

logger = logging.getLogger("fairlead.carrier")

GROUPS: Final = "P-256:X25519"
"""The groups for the key exchange, restricted because a client may choose one. In a run of `openssl speed` with OpenSSL
3.0, P-256 took 47 µs and X25519 31 µs; those that are left out took 143 (X448), 300 (P-521) and 773 µs (P-384)."""
CIPHER_SUITES: Final = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
"""Those of TLS 1.3, in the order of Mozilla's Server Side TLS 5.7. OpenSSL would prefer AES-256, whose handshakes
derive their keys with SHA-384, which most processors do not speed up as they do SHA-256."""
TICKETS: Final = 1
"""Session tickets for each new connection. OpenSSL would send two, and each connection brings a new one."""
DAY: Final = 86_400
EXPIRY_WARNING: Final = 14 * DAY
"""A certificate that expires within so many seconds is logged as a warning. cert-manager renews a certificate when a
third of its lifetime is left, which is 30 days with most authorities."""


class ServerContext(ssl.SSLContext):
    """The context of a server. `outdated` is true once other authorities of clients are in use than those against which
    its connections were verified."""

    outdated = False


class _Loaded(NamedTuple):
    """What the files say. `seen` is the digest of all of them, and `clients` of those about clients."""

    seen: bytes
    clients: bytes
    context: ServerContext
    expires: float


class ServerCertificate:
    """The certificate in use, as `context`, and counters. Creating it raises ConfigError if the files cannot be
    used."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        session_keys: Path | None = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        chain: TicketKeyChain | None = None,
        clients: ClientAuthorities | None = None,
    ) -> None:
        """With `clients`, clients are asked for certificates."""
        self.clients = clients
        self._certificate = certificate
        self._key = key
        self._ticket_keys = session_keys
        self._wall_clock = wall_clock
        self._clock = clock
        self._chain = chain or process_chain()
        self._chain_keys: list[bytes] = []
        """Those of the chain that are in use, if there is no file of keys."""
        self._failed = ""
        """Why the last reload failed; each reason is logged and counted once."""
        self.expires = 0.0
        """When the certificate expires, in seconds since 1970."""
        self.reloads = 0
        self.failures = 0
        """The number of reloads that failed."""
        self.handshakes = 0
        self.failed_handshakes = 0
        self.resumptions = 0
        """Handshakes that a session ticket has shortened."""
        self._signatures = self._sign()
        self.context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        self.clients_digest = b""
        """The digest of the files about clients that are in use."""
        self._with_these_clients: weakref.WeakSet[ServerContext] = weakref.WeakSet()
        """The contexts with these files, also those that only older connections have."""
        self._use(self._load(self._digest()))

    @property
    def touched(self) -> bool:
        """Whether a file may have changed since the last reload: one system call for each file."""
        return self._sign() != self._signatures

    async def reload(self) -> bool:
        """Read the files if they have changed. Returns whether another certificate is in use now. Ticket keys that come
        from no file change with time."""
        self._signatures = self._sign()  # before their contents: a later change is seen at the next look
        if self._ticket_keys is None and self._chain.keys(self._clock()) != self._chain_keys:
            self._use_chain(self.context)
        try:
            loaded = await asyncio.to_thread(self._load_changed)
        except ConfigError as error:
            if self._failed != error.message:
                self._failed = error.message
                self.failures += 1
                logger.error("%s; what was read before stays in use", error.message)
            return False
        self._failed = ""
        if loaded is None:
            return False
        self._use(loaded)
        self.reloads += 1
        logger.info("read the TLS certificate again: %s", self._certificate)
        return True

    def _use(self, loaded: _Loaded) -> None:
        """Only called on the event loop, where the handshakes read the ticket keys too."""
        if self._ticket_keys is None:
            self._use_chain(loaded.context)
        if loaded.clients != self.clients_digest:
            for context in self._with_these_clients:
                context.outdated = True
            self._with_these_clients.clear()
        self._with_these_clients.add(loaded.context)
        self._seen, self.clients_digest = loaded.seen, loaded.clients
        self.context, self.expires = loaded.context, loaded.expires
        self._check_expiry()

    def _check_expiry(self) -> None:
        left = self.expires - self._wall_clock()
        if left <= 0:
            logger.warning("the TLS certificate %s has expired: clients refuse it (renew it)", self._certificate)
        elif left < EXPIRY_WARNING:
            logger.warning("the TLS certificate %s expires in %.1f days (renew it)", self._certificate, left / DAY)

    def _files(self) -> list[Path]:
        clients = () if self.clients is None else self.clients.files
        return [path for path in (self._certificate, self._key, self._ticket_keys, *clients) if path is not None]

    def _sign(self) -> list[tuple[int, ...] | None]:
        return [file_signature(path) for path in self._files()]

    def _digest(self) -> bytes:
        return files_digest([_read(path) for path in self._files()])

    def _load_changed(self) -> _Loaded | None:
        digest = self._digest()
        return None if digest == self._seen else self._load(digest)

    def _load(self, digest: bytes) -> _Loaded:
        context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.num_tickets = TICKETS
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                text = f"the TLS key {self._key} does not belong to the certificate {self._certificate}"
            else:
                text = f"cannot use the TLS certificate {self._certificate} with the key {self._key}: {error.reason}"
            raise ConfigError(f"{text}: expected two PEM files, the certificate with its chain first") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {self._certificate} and {self._key}: {error}") from error
        if self._ticket_keys is not None:
            ticket_keys.use(context, ticket_keys.parse(_read(self._ticket_keys).decode("ascii", "replace")))
        openssl.set_groups(context, GROUPS)
        openssl.set_cipher_suites(context, CIPHER_SUITES)
        openssl.cache_no_sessions(context)
        clients = b""
        if self.clients is not None:
            # What decides whether a client's certificate is valid is the same on all nodes.
            clients = files_digest([_read(path) for path in self.clients.files])
            self.clients.apply(context, clients)
        return _Loaded(digest, clients, context, _end_of(self._certificate))

    def _use_chain(self, context: ssl.SSLContext) -> None:
        self._chain_keys = self._chain.keys(self._clock())
        if openssl.find_library() is not None:  # otherwise OpenSSL has a key of its own for this context
            ticket_keys.use(context, self._chain_keys)


def files_digest(contents: list[bytes]) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in contents)).digest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the TLS file {path}: {error.strerror or error}") from error


def _no_password() -> str:
    """Raise ValueError for an encrypted key, because OpenSSL would ask for a password on the terminal."""
    raise ValueError("the key is encrypted: expected one without a password")


def _end_of(certificate: Path) -> float:
    """When the first certificate of a PEM file expires, in seconds since 1970. Raises ConfigError."""
    try:
        decoded = ssl._ssl._test_decode_cert(str(certificate))  # type: ignore[attr-defined]  # see decision 0026
        return float(ssl.cert_time_to_seconds(decoded["notAfter"]))
    except (OSError, ValueError) as error:  # it may have been replaced since it was read
        raise ConfigError(f"cannot read when the TLS certificate {certificate} expires: {error}") from error
