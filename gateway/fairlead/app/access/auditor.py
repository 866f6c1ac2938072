"""Records what the API decides about a caller: allowed before it takes effect, denied before the caller is told.

The handlers note what a request is about and call `allow` when they are about to do it; the resource of a path calls
`deny`. An audit log that cannot be written makes both raise AuditUnavailable, so that nothing happens unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

from fairlead.app.access.caller import caller
from fairlead.app.api.headers import find_header
from fairlead.audit.log_writer import AuditLogWriter
from fairlead.audit.records import AuditEvent
from fairlead.authorization.service_token import is_token_id
from fairlead.errors import PermissionDenied
from fairlead.telemetry.tracing import parse_traceparent
from fairlead.tenant import local_id

OPERATION: Final = "fairlead.operation"
"""The member of the ASGI scope with the name of the operation."""
_NOTED: Final = "fairlead.audited"
DETAIL_LIMIT: Final = 1_024
"""Characters of a detail or reason; a selector of the API may have as many."""


class Auditor:
    def __init__(self, log: AuditLogWriter | None) -> None:
        self._log = log

    @property
    def on(self) -> bool:
        return self._log is not None

    def note(self, request: Request, payload: bytes | None = None, **about: str) -> None:
        """Note what the request is about: members of AuditEvent, and the payload, of which only the digest is kept."""
        if self._log is None:
            return
        if payload is not None:
            about["digest"] = hashlib.sha256(payload).hexdigest()
        request.scope.setdefault(_NOTED, {}).update({name: value[:DETAIL_LIMIT] for name, value in about.items()})

    async def allow(self, request: Request, count: int | None = None) -> None:
        """Record that the request is allowed. `count` is the number of agents, tokens or lines that are shown."""
        if self._log is not None:
            await self._log.write(_event(request, "allowed", "", count))

    async def deny(self, request: Request, error: PermissionDenied) -> None:
        if self._log is not None:
            await self._log.write(_event(request, "denied", error.message[:DETAIL_LIMIT], None))


def _event(request: Request, outcome: str, reason: str, count: int | None) -> AuditEvent:
    scope: Mapping[str, Any] = request.scope
    subject = caller(request)
    noted: dict[str, Any] = {**scope.get("path_params", {}), **scope.get(_NOTED, {})}
    if schedule := noted.pop("schedule", ""):
        noted["detail"] = schedule
    token = noted.pop("token", "")
    if token:
        # Callers write a whole token in place of its id, and no secret may get into the log.
        noted.setdefault("detail", token if is_token_id(token) else "not the id of a token")
    for name in ("letter", "sink", "group"):
        if named := noted.pop(name, ""):
            noted["detail"] = f"{name} {named} {noted.get('detail', '')}".rstrip()[:DETAIL_LIMIT]
    for name in ("agent", "command", "run"):
        if name in noted:
            noted[name] = local_id(noted[name])[:128]
    trace = parse_traceparent(find_header(request, b"traceparent") or "")
    return AuditEvent(
        subject.identity, subject.issuer, scope[OPERATION], outcome, reason, count=count,
        trace=f"{trace[0]:032x}" if trace is not None else "", credential=subject.token_id,
        tenant=subject.tenant, **noted,
    )  # fmt: skip
