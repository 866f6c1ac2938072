"""Records links that were refused because of their identity: an agent that says another's id, or whose key the id is
not bound to.

`LinkHandler` and `Registration` note them when they close such a link; both wait for nothing. With an audit log, each
is a line there, as far as LINES_A_SECOND allows: an agent with a valid credential could fill the disk otherwise. The
lines that are left out are counted in the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from fairlead.audit.log_writer import AuditLogWriter, AuditUnavailable
from fairlead.audit.records import AuditEvent
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.telemetry.logs import ids
from fairlead.tenant import local_id, tenant_of

logger = logging.getLogger(__name__)

LINES_A_SECOND: Final = 10
ACTION: Final = "openLink"
"""The action in the audit log, beside those of the API."""


class RefusedLinks:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.log: AuditLogWriter | None = None
        """The audit log of the node, if it has one; set by the node."""
        self.tasks = BackgroundTasks()
        self.count = 0
        self._clock = clock
        self._second = 0
        self._lines = self._left_out = 0

    def note(self, claimed: str, proved: str, reason: str) -> None:
        """A link was refused that claimed the id `claimed`. `proved` is the id that its credential or certificate says,
        "" for the shared token."""
        self.count += 1
        second = int(self._clock())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= LINES_A_SECOND:
            self._left_out += 1
            return
        self._lines += 1
        subject = f"agent:{local_id(proved)}" if proved else "agent-token"
        logger.warning("refused a link of %s as agent %s: %s", subject, claimed, reason, extra=ids(agent=claimed))
        if self.log is not None:
            more = f"{self._left_out} more links were refused before" if self._left_out else ""
            self._left_out = 0
            event = AuditEvent(
                subject, "", ACTION, "denied", reason, agent=local_id(claimed), detail=more, tenant=tenant_of(proved)
            )
            self.tasks.spawn(self._write(self.log, event))

    async def _write(self, log: AuditLogWriter, event: AuditEvent) -> None:
        try:
            await log.write(event)
        except AuditUnavailable as e:  # the link is refused in any case
            logger.error("a refused link is not in the audit log: %s", e.message)
