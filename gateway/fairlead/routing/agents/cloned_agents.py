"""Tells that two copies of an agent use one key, and revokes the key if the policy says so.

`Registration` reports what the claim of a link has found (see `fleet/scripts/claim_agent.lua`), and the node creates
one. What is told is the same everywhere: a line of the log, a metric, an event of the agent, and a line of the audit
log. A copy that was found again within a day is not told again, unless the node that was to tell it has died before
that: so what was told is recorded last, in the agent's row. It decides nothing: the claim does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from fairlead.audit.log_writer import AuditLogWriter
from fairlead.audit.records import AuditEvent
from fairlead.errors import FairleadError
from fairlead.hub.session import Session
from fairlead.routing.agents.key_revocations import KeyRevocations
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.fleet_store import FleetStore
from fairlead.telemetry.logs import LogAggregator
from fairlead.telemetry.metrics import Metrics
from fairlead.tenant import local_id, tenant_of

logger = logging.getLogger(__name__)

EVENT: Final = "fairlead.agent.cloned"
"""The type of the event."""
ACTION: Final = "agentCloned"
"""The action in the audit log."""
HELD_SHARE: Final = 0.5
"""The share of the places for a tenant's revoked keys that keys which are held may take: whoever has an enrolment token
can make as many copies as it enrols agents, and administrators must be able to revoke keys all the same. Beyond it, a
key is refused by its binding alone, and the open link of the other copy stays until it ends."""
ATTEMPTS: Final = 6
PAUSE: Final = (2.0, 10.0)
"""Seconds between two attempts to tell: with six of them, Redis may be away for half a minute. The binding refuses a
revoked key all the while."""


class ClonedAgents:
    def __init__(
        self, fleet: FleetStore, revocations: KeyRevocations, audit_log: AuditLogWriter | None, tasks: BackgroundTasks,
        now: Callable[[], int], metrics: Metrics,
    ) -> None:  # fmt: skip
        """`now` is Redis TIME in ms."""
        self._fleet = fleet
        self._revocations = revocations
        self._audit_log = audit_log
        self._tasks = tasks
        self._now = now
        self._found = 0
        self._outdated = 0
        self._log_aggregator = LogAggregator(logger)
        metrics.add_counter(
            "fairlead_cloned_agents_total",
            "Agents whose key was found to be used by two copies",
            lambda: self._found,
        )
        metrics.add_counter(
            "fairlead_outdated_sessions_total",
            "Links whose agent showed a session that is out of date, as after a restore of a backup",
            lambda: self._outdated,
        )

    def outdated(self, session: Session) -> None:
        """The agent of this link has showed a session that is out of date. That alone is no copy."""
        self._outdated += 1
        # Aggregated, because an agent may show one on every link that it opens.
        self._log_aggregator.note(
            "sessions out of date", "of other links", logging.WARNING,
            "agent %s showed a session that is out of date: its disk was restored from a backup, or was copied; two "
            "copies are told apart when the other one comes back",
            session.agent,
        )  # fmt: skip

    def aclose(self) -> None:
        self._log_aggregator.aclose()

    def found(self, session: Session, thumbprint: str, *, revoked: bool) -> None:
        """The key of this link's agent was found to have two holders, and was `revoked` for the agent's id."""
        self._found += 1
        what = "revoked it" if revoked else "one of them has the link, and they take turns at most once a minute"
        logger.error(
            "two copies of agent %s use its key %s: %s (a cloned disk, or the agent runs twice with one identity "
            "folder; stop one of them, or have it enrol with an id of its own)",
            session.agent, thumbprint, what,
        )  # fmt: skip
        self._tasks.spawn(self._tell(session.agent, thumbprint, revoked))

    async def _tell(self, agent: str, thumbprint: str, revoked: bool) -> None:
        if revoked:
            await _repeat("revoke the key everywhere", agent, lambda: self._revoke(agent, thumbprint))
        id, payload = secrets.token_hex(16), msgspec.json.encode({"key": thumbprint, "revoked": revoked})
        await _repeat("store the event", agent, lambda: self._add_event(agent, id, payload))
        if self._audit_log is not None:
            line = AuditEvent(
                f"agent:{local_id(agent)}", "", ACTION, "denied" if revoked else "allowed",
                "two copies of the agent use its key", agent=local_id(agent), tenant=tenant_of(agent),
                detail=f"key {thumbprint}{', revoked' if revoked else ''}",
            )  # fmt: skip
            log = self._audit_log
            await _repeat("write the audit log", agent, lambda: log.write(line))
        await _repeat("record that it was told", agent, lambda: self._told(agent))

    async def _revoke(self, agent: str, thumbprint: str) -> None:
        if self._revocations.holds(thumbprint):
            return  # the notice came again
        await self._revocations.require_room(tenant_of(agent), share=HELD_SHARE)
        await self._revocations.revoke(agent, thumbprint)

    async def _told(self, agent: str) -> None:
        await self._fleet.directory.copies_told(agent)

    async def _add_event(self, agent: str, id: str, payload: bytes) -> None:
        await self._fleet.events.add(agent, EVENT, id, self._now(), payload, self._fleet.memory.events_bytes)


async def _repeat(what: str, agent: str, attempt: Callable[[], Awaitable[None]]) -> None:
    for left in reversed(range(ATTEMPTS)):
        try:
            await attempt()
            return
        except FairleadError as e:
            logger.log(logging.WARNING if left else logging.ERROR, "agent %s is cloned: cannot %s: %s", agent, what, e)
            if left:
                await asyncio.sleep(random.uniform(*PAUSE))
