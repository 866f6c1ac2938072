"""What keeps the audit log of a node: its writer with the key that signs, and its export to a collector.

The node makes one from its settings, runs its loops and closes it; `log` is None if none is kept.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from fairlead.audit.log_exporter import AuditLogExporter
from fairlead.audit.log_writer import AuditLogWriter
from fairlead.audit.records import (
    CLIENT_AUTHORITIES_CHANGED,
    DIRECTIVE,
    DRAINING,
    ENDED,
    LINKS_CLOSED,
    ROLES_CHANGED,
    SINKS_CHANGED,
    STARTED,
    STOPPED,
    AuditEvent,
)
from fairlead.errors import ConfigError
from fairlead.settings import Settings
from fairlead.signing.keys import PrivateKey, load_private_key
from fairlead.telemetry.metrics import Metrics
from fairlead.tenant import local_id, tenant_of
from fairlead.version import __version__

DETAIL_LIMIT: Final = 1_024
"""Characters of a list of issuers."""
CODE_LIMIT: Final = 256
"""Characters of the code of an error, which agents choose."""


class AuditTrail:
    """Raises ConfigError if the key cannot be used."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.log: AuditLogWriter | None = None
        self._exporter: AuditLogExporter | None = None
        self._started = False
        if settings.audit_log is None:
            return
        key = None if settings.audit_key is None else _load_key(settings.audit_key)
        self.log = log = AuditLogWriter(
            settings.audit_log, settings.node, settings.audit_fsync, settings.audit_size, key,
            settings.audit_head_interval,
        )  # fmt: skip
        metrics.add_counter("fairlead_audit_lines_total", "Lines written to the audit log", lambda: log.lines)
        metrics.add_counter(
            "fairlead_audit_failures_total",
            "Events refused because the audit log could not be written",
            lambda: log.failures,
        )
        if settings.audit_endpoint:
            self._export(settings, log, metrics)

    def open(self) -> None:
        """Raises ConfigError if the folder cannot be used."""
        if self.log is not None:
            self.log.open()

    def node_started(self, roles: str) -> None:
        """Record that the node has joined the fleet. `roles` is the digest of its file of roles, "" for none."""
        self._started = True
        if self.log is not None:
            self.log.note(AuditEvent("node", "node", STARTED, "allowed", digest=roles, detail=f"version {__version__}"))

    def node_draining(self, links: int) -> None:
        """Record that the node moves its links away because it was told to stop."""
        if self.log is not None:
            self.log.note(AuditEvent("node", "node", DRAINING, "allowed", count=links))

    def directive(self, what: str, detail: str, links: int, selector: str = "") -> None:
        """Record what this node does, or has done, because of a directive in Redis, and with how many links."""
        if self.log is not None:
            self.log.note(
                AuditEvent(
                    "operator", "redis", DIRECTIVE, "allowed", what, selector=selector, count=links, detail=detail
                )
            )

    def roles_changed(self, roles: str, count: int) -> None:
        """Record that other roles hold from now on: the digest of the file, and how many roles it has."""
        if self.log is not None:
            self.log.note(AuditEvent("node", "node", ROLES_CHANGED, "allowed", digest=roles, detail=f"{count} roles"))

    def issuers_changed(self, action: str, issuers: Iterable[str]) -> None:
        """Record whose JWTs are trusted from now on: the URLs of the issuers."""
        if self.log is not None:
            self.log.note(AuditEvent("node", "node", action, "allowed", detail=", ".join(issuers)[:DETAIL_LIMIT]))

    def client_authorities_changed(self, digest: str, detail: str, closed: int) -> None:
        """Record that other files say whose client certificates are valid, and how many links were closed for that."""
        if self.log is not None:
            event = AuditEvent(
                "node", "node", CLIENT_AUTHORITIES_CHANGED, "allowed", digest=digest, count=closed, detail=detail
            )
            self.log.note(event)

    def links_closed(self, reason: str, count: int, tenant: str = "") -> None:
        """Record how many links were closed because what has opened them is not trusted any more."""
        if self.log is not None:
            self.log.note(AuditEvent("node", "node", LINKS_CLOSED, "allowed", reason, count=count, tenant=tenant))

    def sinks_changed(self, file: str, sinks: Iterable[str]) -> None:
        """Record where events are delivered from now on: the digest of the file, and the names of the sinks."""
        if self.log is not None:
            detail = ", ".join(sinks)[:DETAIL_LIMIT]
            self.log.note(AuditEvent("node", "node", SINKS_CHANGED, "allowed", digest=file, detail=detail))

    def command_ended(self, command: str, agent: str, state: str, code: str) -> None:
        """Record how a command has ended, so that the line of its post can be matched with what became of it."""
        if self.log is not None:
            name, tenant = local_id(agent), tenant_of(agent)
            self.log.note(
                AuditEvent("node", "node", ENDED, state, code[:CODE_LIMIT], agent=name, command=command, tenant=tenant)
            )

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        return [one.run() for one in (self.log, self._exporter) if one is not None]

    async def aclose(self) -> None:
        """Sign the last lines, and export what is left if there is time."""
        if self.log is not None:
            if self._started:
                self.log.note(AuditEvent("node", "node", STOPPED, "allowed"))
            self.log.close()
        if self._exporter is not None:
            await self._exporter.aclose()

    def _export(self, settings: Settings, log: AuditLogWriter, metrics: Metrics) -> None:
        endpoint = settings.audit_endpoint
        if not urlsplit(endpoint).path.strip("/"):
            endpoint = endpoint.rstrip("/") + "/v1/logs"
        about = {"service.name": "fairlead", "service.instance.id": settings.node, "service.version": __version__}
        self._exporter = exporter = AuditLogExporter(log, endpoint, about)
        metrics.add_counter(
            "fairlead_audit_exported_lines_total",
            "Lines of the audit log that the collector has accepted",
            lambda: exporter.exported,
        )
        metrics.add_counter(
            "fairlead_audit_export_failures_total",
            "Batches of the audit log that the collector did not accept; they are sent again",
            lambda: exporter.failures,
        )
        metrics.add_counter(
            "fairlead_audit_export_missing_lines_total",
            "Lines of the audit log that were removed before they were exported",
            lambda: exporter.missing,
        )
        metrics.add_gauge(
            "fairlead_audit_export_waiting_lines",
            "Lines of the audit log that the collector has not accepted yet",
            lambda: exporter.waiting,
        )


def _load_key(path: Path) -> PrivateKey:
    try:
        octets = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"audit_key {path} cannot be read ({e.strerror or e}): expected an Ed25519 key in PEM") from e
    return load_private_key(octets, f"audit_key {path}")
