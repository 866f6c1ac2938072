"""The agents that join a run while it goes on: those that match its selector and are linked, and were not before.

The driver of a run whose caller wants it looks here again and again until the run expires. So nothing has to be told
when an agent connects, no link costs anything more, and a new owner looks as the old one did. Whether the caller still
may run the method is asked each time, for the owner may be a node that never saw them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from typing import Final

from fairlead.audit.log_writer import AuditLogWriter
from fairlead.audit.records import JOINED, AuditEvent
from fairlead.errors import FairleadError
from fairlead.fleet import selector
from fairlead.fleet.node_table import Presence
from fairlead.fleet.runs.poster import Poster
from fairlead.fleet.runs.run_record import OwnedRun, RunTerms
from fairlead.fleet.schema import AgentRow
from fairlead.routing.membership.membership import Membership
from fairlead.routing.runs.selection import TARGETS, AgentSelection
from fairlead.tenant import local_id

logger = logging.getLogger(__name__)

LOOK: Final = 2.0
"""Seconds between two looks."""
SHARE: Final = 20
"""A look that took a second is followed by a pause of so many: looking takes a twentieth of the owner's time at most,
however large the fleet is."""
NAMED: Final = 7
"""Agents that a line of the audit log names, whose ids have 128 characters at most."""


def nobody(_poster: Poster, _method: str) -> None:
    """Until the node has said who may run what, nobody may."""


class LateAgents:
    def __init__(self, agents: AgentSelection, membership: Membership) -> None:
        self._agents = agents
        self._membership = membership
        self.may_run: Callable[[Poster, str], Callable[[AgentRow], bool] | None] = nobody
        """Says which agents a poster may run a method on now; None if they may run it nowhere."""
        self.log: AuditLogWriter | None = None

    async def find(self, terms: RunTerms, known: Collection[str], *, linked: bool = True) -> list[str]:
        """Agents that match and that the poster may run the method on now, without those that are `known`; with
        `linked`, only those that have a link. Raises FairleadError."""
        assert terms.poster is not None, "such a run has its poster"
        may = self.may_run(terms.poster, terms.method)
        if may is None:
            return []

        def joins(row: AgentRow) -> bool:
            return row.agent not in known and (not linked or self.is_linked(row)) and may(row)

        return (await self._agents.select(terms.tenant, selector.parse(terms.selector), joins)).agents

    async def record(self, run: str, terms: RunTerms, agents: list[str]) -> None:
        """Write who joins a run, before they do. Raises AuditUnavailable."""
        if self.log is None:
            return
        named = ", ".join(map(local_id, agents[:NAMED])) + ", …" * (len(agents) > NAMED)
        await self.log.write(
            AuditEvent(
                terms.subject, "run", JOINED, "allowed", method=terms.method, selector=terms.selector,
                count=len(agents), run=run, detail=named,
                credential="" if terms.poster is None else terms.poster.token_id, tenant=terms.tenant,
            )
        )  # fmt: skip

    def is_linked(self, row: AgentRow) -> bool:
        return self._membership.table.presence(row, self._membership.now())[0] is Presence.ONLINE


class Joining:
    """The looks of one run's driver. What they find waits here until the driver takes it."""

    def __init__(self, late: LateAgents, run: OwnedRun, found: Callable[[], None]) -> None:
        """`found` is called when some more agents can be taken."""
        self._late = late
        self._run = run
        self._known = set(run.agents)
        self._found: list[str] = []
        self._tell = found
        self._task = asyncio.create_task(self._look())

    def take(self) -> list[str]:
        """The agents that join now."""
        taken, self._found = self._found, []
        return taken

    def close(self) -> None:
        self._task.cancel()

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                new = await self._late.find(self._run.terms, self._known)
                new = new[: max(0, TARGETS - len(self._known))]
                if new:
                    await self._late.record(self._run.id, self._run.terms, new)
            except FairleadError as e:
                logger.debug("the agents that join a run are looked for again: %s", e.message)
            except Exception:
                logger.exception("looking for agents that join a run failed")
            else:
                self._known.update(new)
                self._found += new
                if new:
                    self._tell()
            await asyncio.sleep(max(LOOK, SHARE * (clock() - began)) * random.uniform(0.8, 1.0))
