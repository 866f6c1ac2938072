"""The TLS certificates of a node's ports: read at the start, watched while the node runs, and reported as metrics.

`node_server` creates one `Certificates`, gives each server its certificate, and runs `watch`. When the authorities or
the revocation lists of clients have changed, it has the links closed that would not be opened any more. It serves
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Final

from fairlead.carrier.tls.client_authorities import ClientAuthorities
from fairlead.carrier.tls.server_certificate import ServerCertificate, files_digest
from fairlead.errors import ConfigError
from fairlead.identity.certificate_trust import CertificateTrust, TrustChange, read_trust
from fairlead.settings import Settings
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger("fairlead")

INTERVAL: Final = 1.0
"""Seconds between two looks at the files, each of which is one system call for each file. The links of a certificate
that was revoked are closed within 5 s."""
READS: Final = 10
"""Looks after which the contents are compared in any case."""
PAUSE: Final = 0.001
"""Seconds for which the thread that reads a long revocation list leaves the interpreter to the event loop, after each
half millisecond."""


class Certificates:
    """Raises ConfigError if a file cannot be used."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        pairs = {
            "link": (settings.link_tls_cert, settings.link_tls_key),
            "api": (settings.api_tls_cert, settings.api_tls_key),
        }
        self._by_port = {
            port: ServerCertificate(
                certificate, key, settings.tls_ticket_keys, clients=_clients(settings) if port == "link" else None
            )
            for port, (certificate, key) in pairs.items()
            if certificate is not None and key is not None
        }
        self._wanted = asyncio.Event()
        self._trust = CertificateTrust()
        self._unread = b""
        """The digest of files about clients that could not be read for the links that are open."""
        if self.link is not None and self.link.clients is not None:
            self._trust = _read(self.link.clients)
        if self._by_port:
            self._watch_metrics(metrics)

    def __bool__(self) -> bool:
        return bool(self._by_port)

    @property
    def link(self) -> ServerCertificate | None:
        return self._by_port.get("link")

    @property
    def api(self) -> ServerCertificate | None:
        return self._by_port.get("api")

    async def watch(self, on_change: Callable[[TrustChange, CertificateTrust], Awaitable[None]]) -> None:
        """Read changed files again: within `INTERVAL` seconds, and at once on SIGHUP. `on_change` is called when other
        client certificates are valid than before."""
        # The handler stays when this coroutine ends: otherwise SIGHUP would kill the process while it stops gracefully.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._wanted.set)
        looks = 0
        while True:
            try:
                async with asyncio.timeout(INTERVAL * random.uniform(0.9, 1.1)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            looks += 1
            forced = self._wanted.is_set() or looks % READS == 0
            self._wanted.clear()
            for certificate in self._by_port.values():
                if forced or certificate.touched:
                    await certificate.reload()
            if self.link is not None and self.link.clients is not None:
                await self._follow_clients(self.link, self.link.clients, on_change)

    async def _follow_clients(
        self,
        certificate: ServerCertificate,
        clients: ClientAuthorities,
        on_change: Callable[[TrustChange, CertificateTrust], Awaitable[None]],
    ) -> None:
        if certificate.clients_digest in (self._trust.digest, self._unread):
            return
        try:
            trust = await asyncio.to_thread(_read, clients, lambda: time.sleep(PAUSE))
        except ConfigError as error:
            # OpenSSL has accepted the files, so new connections go by them.
            self._unread = certificate.clients_digest
            certificate.failures += 1
            logger.error("%s; open links of certificates that are not valid any more stay", error.message)
            return
        if trust.digest == certificate.clients_digest:  # otherwise they have changed again, and are read again
            change, self._trust = TrustChange(self._trust, trust), trust
            await on_change(change, trust)

    def _watch_metrics(self, metrics: Metrics) -> None:
        every = self._by_port
        metrics.add_labelled_gauge(
            "fairlead_tls_certificate_expiry_timestamp_seconds",
            "When the TLS certificate of a port ends, in seconds since 1970",
            "port",
            {port: (lambda one=one: one.expires) for port, one in every.items()},  # type: ignore[misc]
        )
        for name, text, attribute in (
            ("fairlead_tls_handshakes_total", "TLS handshakes that succeeded", "handshakes"),
            ("fairlead_tls_handshake_failures_total", "TLS handshakes that failed", "failed_handshakes"),
            ("fairlead_tls_resumptions_total", "TLS handshakes that resumed a session", "resumptions"),
            ("fairlead_tls_reloads_total", "Times that changed TLS files were read again", "reloads"),
            ("fairlead_tls_reload_failures_total", "Times that changed TLS files could not be used", "failures"),
        ):
            metrics.add_counter(name, text, lambda name=attribute: sum(getattr(one, name) for one in every.values()))  # type: ignore[misc]


def _read(clients: ClientAuthorities, pause: Callable[[], object] = lambda: None) -> CertificateTrust:
    """What the files about clients say; `pause` as for `read_trust`. Raises ConfigError."""
    try:
        contents = [path.read_bytes() for path in clients.files]
    except OSError as error:
        raise ConfigError(f"cannot read the files of client authorities: {error}") from error
    return read_trust(contents[0], b"".join(contents[1:]), files_digest(contents), pause)


def _clients(settings: Settings) -> ClientAuthorities | None:
    """Whose client certificates the link port accepts; None if it asks for none."""
    if settings.link_tls_client_ca is None:
        return None
    required = settings.link_tls_client_auth == "required"
    return ClientAuthorities(settings.link_tls_client_ca, settings.link_tls_client_crl, required)
