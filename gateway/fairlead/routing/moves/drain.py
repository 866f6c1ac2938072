"""Empties a node that stops: all agents move to other nodes, at the pace that the fleet's budget of moves allows.

The node runs it once, after SIGTERM. Each agent is told to move when the budget grants its move, idle agents first;
those inside a command wait for its end. The process ends at the deadline of the drain, whatever the budget grants. When
that is too little, as in a rollout that replaces all nodes at once, the node keeps to an even pace over its whole drain
and overdraws the budget, as far as the other nodes can accept it: otherwise most agents would move in the last minute.
Near the deadline, what is left is paced evenly over the time that is left, whatever the others can take.

An agent that moves opens its new link first, so the old one is closed only LEAVE_GRACE after its slot; usually the
agent has left it by then (see `leaving_links`). A process that was stopped, or had no CPU for some seconds, does not
catch up with what it has missed: the rest is paced over the time that is left.
"""

from __future__ import annotations

import asyncio

from fairlead.fleet.moves.move_bucket import Grant
from fairlead.fleet.moves.move_rate import FINAL_SECONDS, LAG_SECONDS, even_pace
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.moves.leaving_links import LATE, LeavingLinks
from fairlead.routing.moves.move_budget import BATCH_SECONDS, MoveBudget
from fairlead.routing.moves.move_queue import MoveQueue
from fairlead.wire.messages import LEAVE_GRACE

STEP = 0.05
"""Seconds between two steps of a drain: smooth enough, and 20 wake-ups a second cost next to nothing."""
ASK_AGAIN = 1.0
"""Seconds after which the budget is asked again at the latest: its rate may have changed."""


class NodeDrain:
    def __init__(self, hub: Hub, budget: MoveBudget, timeout: float) -> None:
        """`timeout` is the number of seconds that a drain may take."""
        self._hub = hub
        self.budget = budget
        self._timeout = timeout
        self._queue = MoveQueue(())
        self._leaving = LeavingLinks(0.0)
        self._ask_at = 0.0
        self._owed = 0.0
        """Moves that the deadline requires and that have neither been granted by the budget nor overdrawn it yet;
        negative when more have been granted."""

    @property
    def waiting(self) -> int:
        """Agents that wait for their move to be granted."""
        return len(self._queue)

    async def run(self) -> int:
        """Move all agents. Returns their number."""
        hub, loop = self._hub, asyncio.get_running_loop()
        hub.draining = True
        count = len(hub)
        self._queue, self._leaving = MoveQueue(hub), LeavingLinks(loop.time())
        deadline = loop.time() + self._timeout
        final = deadline - min(float(FINAL_SECONDS), self._timeout / 2)
        # The last agents need some time to connect elsewhere.
        last_slot = deadline - min(LEAVE_GRACE, self._timeout / 4)
        at = loop.time()
        while len(hub) and (now := loop.time()) < deadline:
            if now < final:
                await self._keep_pace(min(now - at, LATE), last_slot - now)
            else:
                if at < final:
                    self._owed = 0.0
                await self._move_overdue(min(now - max(at, final), LATE), max(last_slot - now, STEP))
            if now >= self._ask_at:
                await self._move_granted(now >= final)
            self._close_late(now)
            at = now
            await asyncio.sleep(STEP)
        for session in hub:
            session.close_for_restart()
        return count

    async def _move_granted(self, final: bool) -> None:
        """Tell as many agents to move as the budget grants now."""
        budget, loop = self.budget, asyncio.get_running_loop()
        await budget.refresh()
        # A node that is alone does not wait for commands: the sooner it is back, the sooner its agents are back.
        sessions = self._queue.take(budget.batch, busy_too=final or budget.alone)
        if not sessions:
            self._ask_at = loop.time() + BATCH_SECONDS
            return
        grant = await budget.take("shutdown", len(sessions))
        now = loop.time()
        for i, session in enumerate(sessions[: grant.moves]):
            self._tell(session, grant.delay + i / grant.rate, now)
        self._queue.put_back(sessions[grant.moves :])
        self._owed -= grant.moves
        self._ask_at = now + min(ASK_AGAIN, _seconds_of(grant))

    async def _keep_pace(self, elapsed: float, left: float) -> None:
        """Tell idle agents to move, without waiting for the budget, when its grants fall behind the even pace."""
        pace = even_pace(len(self._queue), left, self.budget.accepted)
        self._owed += pace * elapsed
        overdue = self._owed - pace * LAG_SECONDS
        if overdue >= 1:
            await self._overdraw(self._queue.take(int(overdue)), elapsed)
            self._owed = min(self._owed, pace * LAG_SECONDS)  # those inside a command wait, and are not owed

    async def _move_overdue(self, elapsed: float, left: float) -> None:
        """Tell agents to move without waiting for the budget: as many as fall due in `elapsed` seconds if all that wait
        are spread evenly over `left` seconds."""
        self._owed += len(self._queue) * min(1.0, elapsed / left)
        if self._owed >= 1:
            await self._overdraw(self._queue.take(int(self._owed), busy_too=True), min(elapsed, left))

    async def _overdraw(self, sessions: list[Session], seconds: float) -> None:
        """Tell these agents to move, spread evenly over the next `seconds`."""
        if not sessions:
            return
        self._owed -= len(sessions)
        now = asyncio.get_running_loop().time()
        for i, session in enumerate(sessions):
            self._tell(session, i * seconds / len(sessions), now)
        await self.budget.overdraw("shutdown", len(sessions))

    def _tell(self, session: Session, slot: float, now: float) -> None:
        session.announce_drain("shutdown", int(slot * 1000))
        self._leaving.add(session, slot, now)

    def _close_late(self, now: float) -> None:
        """Close the links whose agents have not left in time, and those of agents that have nowhere to go."""
        for session in self._leaving.take_late(0.0 if self.budget.alone else LEAVE_GRACE, now):
            session.close_for_restart()


def _seconds_of(grant: Grant) -> float:
    """How long the node can wait before it asks again: until one step before the last granted move is due."""
    return max(STEP, grant.delay + grant.moves / grant.rate - 2 * STEP) if grant.moves else grant.delay
