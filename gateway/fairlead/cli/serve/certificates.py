"""The TLS certificates of a node's ports: read at the start, watched while the node runs, and reported as metrics.

`node_server` creates one `Certificates`, gives each server its certificate, and runs `watch`. It serves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from typing import Final

from fairlead.carrier.tls.server_certificate import ServerCertificate
from fairlead.settings import Settings
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger("fairlead")

INTERVAL: Final = 10.0
"""Seconds between two checks of the files. The kubelet needs up to a minute to update a changed Secret in a pod."""


class Certificates:
    """Raises ConfigError if a file cannot be used."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        pairs = {
            "link": (settings.link_tls_cert, settings.link_tls_key),
            "api": (settings.api_tls_cert, settings.api_tls_key),
        }
        self._by_port = {
            port: ServerCertificate(certificate, key, settings.tls_ticket_keys)
            for port, (certificate, key) in pairs.items()
            if certificate is not None and key is not None
        }
        self._wanted = asyncio.Event()
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

    async def watch(self) -> None:
        """Read changed files again: every `INTERVAL` seconds, and at once on SIGHUP."""
        # The handler stays when this coroutine ends: otherwise SIGHUP would kill the process while it stops gracefully.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._wanted.set)
        while True:
            try:
                async with asyncio.timeout(INTERVAL * random.uniform(0.9, 1.1)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            for certificate in self._by_port.values():
                certificate.reload()

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
