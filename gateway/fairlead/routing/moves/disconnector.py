"""Closes links of this node that a LinkOperation of type Disconnect asks for; their agents connect again.

The node runs it as long as it is in the fleet. The directive is in Redis (see `fleet.directives.disconnect`). The links
that are here when it is first read are examined one after the other. Each is compared with its agent's row in Redis
right before it is closed: the row must belong to this link, the link must have begun before the directive, and the
agent must match. A link that cannot be decided, because Redis has lost the labels, stays. Links are closed when the
directive's own rate and the fleet's budget of moves both grant it. Running commands continue over the agent's next
link.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence

from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.fleet.directives.disconnect import Disconnect
from fairlead.fleet.directives.disconnect_report import DisconnectReport
from fairlead.fleet.moves.move_bucket import MoveBucket
from fairlead.fleet.schema import AgentRow
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.moves.move_budget import BATCH_SECONDS, MoveBudget
from fairlead.wire.close_codes import CloseCode

logger = logging.getLogger(__name__)

PERIOD = 5.0
"""Seconds between two readings of the directive, as between heartbeats."""
STEP = 0.05
"""Seconds between two steps while links are examined."""
AT_ONCE = 64
"""Links that are compared with their rows in one step."""
FLEET_ROWS = 20_000
"""Rows per second that all nodes together read: a fifth of what one Redis can answer. A million agents take a
minute."""
REPORT_PERIOD = 1.0
"""Seconds between two reports of the progress."""


class Disconnector:
    def __init__(self, fleet: FleetStore, hub: Hub, budget: MoveBudget, membership: Membership) -> None:
        self._directives = fleet.disconnects
        self._directory = fleet.directory
        self._bucket = MoveBucket(fleet.store, schema.DISCONNECT)
        self._hub = hub
        self._budget = budget
        self._membership = membership
        self._operation = ""
        """The operation whose directive was read last."""
        self._wanted: Disconnect | None = None
        self._holds = False
        """Whether the directive had not expired when it was last read."""
        self._left: deque[Session] = deque()
        """The links that have yet to be examined."""
        self._total = self._closed = self._undecided = 0
        self._reported: DisconnectReport | None = None
        self._report_at = 0.0
        self._told_end = True
        self.on_directive: Callable[[str, str, int, str], None] = lambda _what, _detail, _links, _selector: None
        """Told that a directive begins or has ended here, its name and reason, how many links it concerns, and its
        selector; set by the node."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        looked_at = wait_until = float("-inf")
        while True:
            await asyncio.sleep(STEP if self._left and self._holds else PERIOD)
            try:
                if loop.time() - looked_at >= PERIOD:
                    looked_at = loop.time()
                    await self._read_directive()
                if self._wanted is not None and self._holds and loop.time() >= wait_until:
                    wait_until = loop.time() + await self._step(self._wanted)
                await self._report()
                self._tell_end()
            except BusUnavailable as e:
                logger.debug("no links are disconnected: %s", e)
            except Exception:
                logger.exception("disconnecting links failed")

    async def _read_directive(self) -> None:
        operation, until = await self._directives.current()
        self._holds = until > self._membership.now()
        if operation == self._operation:
            return
        self._tell_end(superseded=True)
        wanted = await self._directives.read(operation) if operation else None
        self._operation, self._wanted, self._left = operation, wanted, deque()
        self._closed = self._undecided = 0
        if wanted is not None:
            named = (self._hub.get(agent) for agent in wanted.agents)
            self._left.extend((one for one in named if one is not None) if wanted.agents else self._hub)
        self._total, self._reported = len(self._left), None
        if wanted is not None and self._total and self._holds:
            self._told_end = False
            self.on_directive("disconnect begins", _described(wanted), self._total, wanted.selector)

    def _tell_end(self, *, superseded: bool = False) -> None:
        """Tell how many links were closed, once all were examined or no more are, unless that was told before."""
        wanted = self._wanted
        if self._told_end or wanted is None or (self._left and self._holds and not superseded):
            return
        self._told_end = True
        self.on_directive("disconnect ends", _described(wanted), self._closed, wanted.selector)

    async def _step(self, wanted: Disconnect) -> float:
        """Examine some links and close those that match. Returns the seconds to wait before the next step."""
        looked_at = [self._left.popleft() for _ in range(min(AT_ONCE, len(self._left)))]
        kept = looked_at
        try:
            undecided, matching = await self._compare(wanted, looked_at)
            granted, delay = await self._granted(wanted, len(matching)) if matching else (0, 0.0)
            self._undecided += undecided
            kept = matching[granted:]
        finally:
            self._left.extendleft(reversed(kept))  # they are compared again when their turn comes
        if granted:
            await asyncio.sleep(delay)
            for session in matching[:granted]:
                self._close(session, wanted)
            delay = 0.0
        nodes = len(self._membership.table.rows())
        return max(delay, len(looked_at) * max(1, nodes) / FLEET_ROWS)

    async def _compare(self, wanted: Disconnect, sessions: Sequence[Session]) -> tuple[int, list[Session]]:
        """Compare sessions with the present rows of their agents. Returns how many cannot be decided, and those that
        match."""
        here = {session.agent: session for session in sessions if session.ready}
        undecided, matching = 0, []
        for row in await self._directory.look_up_all(list(here)):
            session = here[row.agent]
            if row.sid != session.sid or row.up >= wanted.began:
                continue  # the agent has another link by now, or this one began after the directive
            matches = True if wanted.agents else _matches(wanted, row)
            if matches is None:
                undecided += 1
            elif matches:
                matching.append(session)
        return undecided, matching

    async def _granted(self, wanted: Disconnect, count: int) -> tuple[int, float]:
        """How many of `count` links may be closed, and the seconds until then, or until asking again."""
        own = await self._bucket.take(min(count, max(1, int(wanted.rate * BATCH_SECONDS))), 0.0)
        if not own.moves:
            return 0, min(own.delay, PERIOD)
        grant = await self._budget.take("disconnect", own.moves)
        return grant.moves, min(max(own.delay, grant.delay), PERIOD)

    def _close(self, session: Session, wanted: Disconnect) -> None:
        if session.ready:
            because = f": {wanted.reason}" if wanted.reason else ""
            session.close(CloseCode.DISCONNECTED, f"disconnected by the platform{because}", wanted.retry_ms)
            self._closed += 1

    async def _report(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._wanted is None or (self._left and now < self._report_at):
            return
        progress = DisconnectReport(self._total, len(self._left), self._closed, self._undecided)
        if progress != self._reported:
            await self._directives.report(self._operation, self._membership.lease, progress)
            self._reported, self._report_at = progress, now + REPORT_PERIOD


def _described(wanted: Disconnect) -> str:
    agents = f", {len(wanted.agents)} named agents" if wanted.agents else ""
    return f"{wanted.operation[:128]}{agents}" + (f": {wanted.reason[:256]}" if wanted.reason else "")


def _matches(wanted: Disconnect, row: AgentRow) -> bool | None:
    """Whether the agent matches; None if that depends on labels that Redis has lost."""
    labels = None if row.labels_lost else json.loads(row.labels)
    return wanted.matching().matches(labels, json.loads(row.facts))
