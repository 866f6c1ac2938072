"""The sessions of this process by agent, and the drain that closes them at a pace.

`routing` adds a session when its agent is claimed and asks for sessions when it must reach an agent. The hub never
talks to Redis and never decides who owns an agent: generations do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fairlead.hub.session import Session
from fairlead.hub.totals import PENDING_LIMIT, Totals
from fairlead.wire.close_codes import CloseCode, meaning_of

SLOT_STEP = 0.05
"""Seconds between two waves of closes: smooth enough, and 20 wake-ups a second cost nothing."""
DRAIN_BATCH = 100
"""Agents that are told of a drain in one turn of the event loop: some milliseconds."""


class Hub:
    def __init__(self, pending_limit: int = PENDING_LIMIT) -> None:
        """`pending_limit`: bytes that all sessions together may have received and not stored yet."""
        self._sessions: dict[str, Session] = {}
        self._registering: dict[str, Session] = {}
        """By agent: the session for which a claim is under way, until its welcome."""
        self.totals = Totals(pending_limit)
        self.links = 0
        """Open links, with or without an agent: what `capacity` limits."""
        self.accepted = 0
        """Links that were welcomed since the start."""
        self.refused = 0
        """Upgrades that were refused for lack of capacity since the start. The operator scales by it, so wrong tokens
        are not counted: otherwise a stranger could have pods created."""
        self.draining = False
        self._draining: set[Session] = set()
        """The sessions that a drain has told to leave, until they have left or are closed."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    @property
    def drain_remaining(self) -> int:
        """Agents that a drain has told to leave and that have not left yet."""
        return len(self._draining)

    def get(self, agent: str) -> Session | None:
        return self._sessions.get(agent)

    def registering(self, agent: str) -> Session | None:
        """The session of a link that is about to get the agent. The agent may still have another one here: `get`."""
        return self._registering.get(agent)

    def begin_registration(self, session: Session) -> None:
        """A claim for `session` is sent. From now on Redis may name this node as the agent's, before it knows so."""
        self._registering[session.agent] = session

    def end_registration(self, session: Session) -> None:
        """`session` is welcomed, or will not be."""
        if self._registering.get(session.agent) is session:
            del self._registering[session.agent]

    def add(self, session: Session) -> bool:
        """Make `session` the agent's and close an older one. False if a newer one is here already."""
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
        """Remove `session`, whose link is over. False if the agent has another session here by now."""
        self._draining.discard(session)
        if self._sessions.get(session.agent) is not session:
            return False
        del self._sessions[session.agent]
        return True

    def evict(self, agent: str, gen: int, code: int) -> None:
        """Close the agent's session if its generation is `gen` or older."""
        session = self._sessions.get(agent)
        if session is not None and session.gen <= gen:
            session.close(code, meaning_of(code, "closed by another node"))

    async def drain(self, rate: float, timeout: float) -> int:
        """Tell every agent its slot, then close each link at its slot, `rate` a second. Returns the number of agents.

        If that would take longer than `timeout` seconds, the slots are moved together. Agents that leave by themselves
        make the drain shorter.
        """
        self.draining = True
        leaving = list(self._sessions.values())
        self._draining.update(leaving)
        interval = min(1 / rate, timeout / max(len(leaving), 1))
        loop = asyncio.get_running_loop()
        started = loop.time()
        for i, session in enumerate(leaving):
            session.announce_drain(int(max(0.0, started + i * interval - loop.time()) * 1000))
            if i % DRAIN_BATCH == DRAIN_BATCH - 1:
                await asyncio.sleep(0)
        for i, session in enumerate(leaving):
            while (early := started + i * interval - loop.time()) > 0:
                if not self._draining:
                    return len(leaving)
                await asyncio.sleep(min(early, SLOT_STEP))
            session.close_for_restart()
            self._draining.discard(session)
        return len(leaving)
