"""Moves links away from this node while it has more than the operator lets it keep.

The node runs it as long as it is in the fleet. The target comes with the heartbeat while a rebalance runs (see
`fleet.directives.rebalance_targets`). Nodes that have enough links leave their Services then; the first agent is told
to move when load balancers know that, so that it lands on a node that has few. Idle agents are told, those with the
oldest links first, each when the fleet's budget grants its move; no agent moves inside a command, and none twice within
an hour (see `hub.recent_moves` for the exceptions). An agent that lands on this node again counts as moved and stays.

An agent that moves opens its new link first; the old one is closed only LEAVE_GRACE after its slot, when it is still
there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from fairlead.errors import BusUnavailable
from fairlead.fleet.directives.exclusion import SETTLE
from fairlead.hub.hub import Hub
from fairlead.hub.recent_moves import is_crowded
from fairlead.hub.session import Session
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.heartbeat import PERIOD
from fairlead.routing.membership.membership import Membership
from fairlead.routing.moves.leaving_links import LeavingLinks
from fairlead.routing.moves.move_budget import MoveBudget
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import LEAVE_GRACE

logger = logging.getLogger(__name__)

STEP = 0.25
"""Seconds between two batches of moves, the time for which a batch of the budget is asked for."""


class Rebalancer:
    def __init__(self, fleet: FleetStore, hub: Hub, budget: MoveBudget, membership: Membership, capacity: int) -> None:
        self._directory = fleet.directory
        self._hub = hub
        self._budget = budget
        self._membership = membership
        self._capacity = capacity
        self._candidates: deque[Session] = deque()
        """The sessions that may be moved, the oldest first; found anew every PERIOD."""
        self._leaving = LeavingLinks(0.0)
        self._next_slot = 0.0
        """The event loop's time at which the slots end that were given out last. Later slots must not be among them,
        even if an answer of Redis comes late."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        found_at = wait_until = 0.0
        while True:
            running = self._membership.rebalance_target is not None
            await asyncio.sleep(STEP if running or self._leaving else PERIOD)
            try:
                if loop.time() - found_at >= PERIOD:
                    found_at = loop.time()
                    self._find_candidates()
                self._close_late(loop.time())
                if loop.time() >= wait_until:
                    wait_until = loop.time() + await self._move_some()
            except BusUnavailable as e:
                wait_until = loop.time() + PERIOD
                logger.debug("no links are moved: %s", e)
            except Exception:
                wait_until = loop.time() + PERIOD
                logger.exception("moving links failed")

    def _find_candidates(self) -> None:
        self._candidates.clear()
        target = self._membership.rebalance_target
        if target is not None and len(self._hub) > target.keep:
            now, table, recent = self._membership.now(), self._membership.table, self._hub.recent_moves
            crowded = is_crowded(self._hub.links, self._capacity)
            candidates = (
                session
                for session in self._hub
                if recent.may_move(session.agent, now, lambda lease: table.holds(lease, now), crowded=crowded)
            )
            self._candidates.extend(sorted(candidates, key=lambda session: session.welcomed_at))

    async def _move_some(self) -> float:
        """Tell agents to move, as many as are above the target and the budget grants. Returns the seconds to wait."""
        target = self._membership.rebalance_target
        if target is None or self._hub.draining or self._membership.target_age < SETTLE:
            return 0.0
        surplus = len(self._hub) - self._leaving.present(self._hub) - target.keep
        sessions = self._take_idle(min(surplus, self._budget.batch))
        if not sessions:
            return 0.0
        grant = await self._budget.take("rebalance", len(sessions))
        marked = await self._marked(sessions[: grant.moves])
        now = asyncio.get_running_loop().time()
        first = max(grant.delay, self._next_slot - now)
        for i, session in enumerate(marked):
            slot = first + i / grant.rate
            session.announce_drain("rebalance", int(slot * 1000))
            self._leaving.add(session, slot, now)
            self._hub.moved += 1
            self._next_slot = now + slot + 1 / grant.rate
        self._candidates.extendleft(reversed(sessions[grant.moves :]))
        return grant.delay

    def _take_idle(self, count: int) -> list[Session]:
        """Take up to `count` candidates that run no command now, the oldest first. Those that run one are skipped until
        the candidates are found anew."""
        taken: list[Session] = []
        while self._candidates and len(taken) < count:
            session = self._candidates.popleft()
            if session.ready and not session.in_command:
                taken.append(session)
        return taken

    async def _marked(self, sessions: Sequence[Session]) -> list[Session]:
        """Record in Redis that these agents are moved. Returns those that are still here and idle."""
        now = self._membership.now()
        answers = [self._directory.mark_moved(session.agent, session.sid) for session in sessions]
        marked = []
        for session, answer in zip(sessions, answers, strict=True):
            if await answer and session.ready and not session.in_command:
                self._hub.recent_moves.note(session.agent, now, now)
                marked.append(session)
        return marked

    def _close_late(self, now: float) -> None:
        """Close the links of agents that have not left in time."""
        for session in self._leaving.take_late(LEAVE_GRACE, now):
            session.close(CloseCode.RESTART, "the agent was asked to move to another node")
