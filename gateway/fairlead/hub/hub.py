"""The sessions of this process: who is here, and the paced way out.

Filled by routing when an agent is claimed, asked by everybody who must reach an agent. It never talks to Redis
and never decides who owns an agent: generations do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fairlead.hub.session import Session
from fairlead.hub.totals import PENDING_LIMIT, Totals
from fairlead.wire.close_codes import CloseCode, meaning_of
from fairlead.wire.messages import Drain

SLOT_STEP = 0.05
"""Seconds between two waves of closes: smooth enough, and 20 wake-ups a second cost nothing."""
TOLD_AT_ONCE = 100
"""Agents that are told of a drain in one turn of the event loop: some milliseconds."""


class Hub:
    def __init__(self, pending_limit: int = PENDING_LIMIT) -> None:
        """`pending_limit`: bytes that all sessions together may have received and not yet stored."""
        self._sessions: dict[str, Session] = {}
        self.totals = Totals(pending_limit)
        self.links = 0
        """Open connections, greeted or not: what capacity counts."""
        self.accepted = 0
        self.refused = 0
        """Links welcomed, and upgrades refused for lack of room, since the start: what the scaling looks at. A wrong
        token is not counted, or a stranger could have pods made."""
        self.draining = False
        self._leaving: set[Session] = set()
        """Those that a drain has told to leave, until they have left or are closed."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    @property
    def leaving(self) -> int:
        """Agents that a drain has told to leave and that have not left yet."""
        return len(self._leaving)

    def get(self, agent: str) -> Session | None:
        return self._sessions.get(agent)

    def add(self, session: Session) -> bool:
        """Make `session` the agent's; an older one is closed. False when a newer one is here already."""
        older = self._sessions.get(session.agent)
        if older is not None and older is not session:
            if older.gen > session.gen:
                return False
            if older.boot == session.boot:
                older.close(CloseCode.SUPERSEDED, "superseded by a newer attempt of the same process")
            else:
                older.close(CloseCode.REPLACED, "another start of this agent has taken over")
        self._sessions[session.agent] = session
        return True

    def remove(self, session: Session) -> bool:
        """Forget `session`, whose link is over; False when another one stands in its place."""
        self._leaving.discard(session)
        if self._sessions.get(session.agent) is not session:
            return False
        del self._sessions[session.agent]
        return True

    def evict(self, agent: str, gen: int, code: int) -> None:
        """Close the agent's session, if it is of `gen` or older."""
        session = self._sessions.get(agent)
        if session is not None and session.gen <= gen:
            session.close(code, meaning_of(code, "closed from elsewhere"))

    async def drain(self, rate: float, timeout: float) -> int:
        """Tell every agent its slot, then close each at its slot, `rate` a second; returns how many.

        When that would take longer than `timeout` seconds the slots are pressed together. Agents that leave by
        themselves before their slot make the drain shorter, never longer.
        """
        self.draining = True
        leaving = list(self._sessions.values())
        self._leaving.update(leaving)
        pace = min(1 / rate, timeout / max(len(leaving), 1))
        loop = asyncio.get_running_loop()
        started = loop.time()
        for i, session in enumerate(leaving):
            session.drained = True
            if session.ready:  # before its welcome an agent may be told nothing but a bye
                slot = max(0.0, started + i * pace - loop.time())
                session.send(Drain(why="shutdown", slot=int(slot * 1000)))
            if i % TOLD_AT_ONCE == TOLD_AT_ONCE - 1:
                await asyncio.sleep(0)
        for i, session in enumerate(leaving):
            while (early := started + i * pace - loop.time()) > 0:
                if not self._leaving:
                    return len(leaving)
                await asyncio.sleep(min(early, SLOT_STEP))
            session.close(CloseCode.RESTART, "the node restarts")
            self._leaving.discard(session)
        return len(leaving)
