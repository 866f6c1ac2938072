"""The sessions of this process by agent.

`routing` adds a session when its agent is claimed and asks for sessions when it must reach an agent. The hub never
talks to Redis and never decides who owns an agent: generations do.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.hub.opening_links import OpeningLinks
from fairlead.hub.recent_moves import RecentMoves
from fairlead.hub.session import Session
from fairlead.hub.totals import PENDING_LIMIT, Totals
from fairlead.wire.close_codes import CloseCode, meaning_of


class Hub:
    def __init__(self, pending_limit: int = PENDING_LIMIT) -> None:
        """`pending_limit` is the number of bytes that all sessions together may have received but not stored yet."""
        self._sessions: dict[str, Session] = {}
        self._registering: dict[str, Session] = {}
        """For each agent, the session for which a claim is under way, until its welcome."""
        self.totals = Totals(pending_limit)
        self.links = 0
        """Open links, with or without an agent: what `capacity` limits."""
        self.opening = OpeningLinks()
        """The links among them that wait for their welcome, or are about to be open."""
        self.accepted = 0
        """Links that were welcomed since the start."""
        self.refused = 0
        """Upgrades that were refused for lack of capacity since the start. The operator scales by it, so wrong tokens
        are not counted: otherwise a stranger could have pods created."""
        self.left = 0
        """Links whose agents have left on purpose since the start. These agents do not connect to another node; the
        operator expects all others to come back."""
        self.rejected = 0
        """Upgrades that were refused since the start because of their host, token or subprotocol."""
        self.moved = 0
        """Links that a rebalance has made this node move since the start."""
        self.recent_moves = RecentMoves()
        self.draining = False
        """True from the moment when this node is told to stop."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    @property
    def drain_remaining(self) -> int:
        """Agents that have yet to leave because this node drains."""
        return len(self._sessions) if self.draining else 0

    def get(self, agent: str) -> Session | None:
        return self._sessions.get(agent)

    def registering(self, agent: str) -> Session | None:
        """The session for which the agent is being claimed. `get` may still return another session of the agent."""
        return self._registering.get(agent)

    def begin_registration(self, session: Session) -> None:
        """Record that a claim for `session` is sent. From now on Redis may name this node as the agent's, before the
        node knows it."""
        self._registering[session.agent] = session

    def end_registration(self, session: Session) -> None:
        """Record that `session` is welcomed, or will not be."""
        if self._registering.get(session.agent) is session:
            del self._registering[session.agent]

    def add(self, session: Session) -> bool:
        """Make `session` the agent's and close an older one. Returns False if a newer one is here already."""
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
        """Remove `session`, whose link is over. Returns False if the agent has another session here by now."""
        if self._sessions.get(session.agent) is not session:
            return False
        del self._sessions[session.agent]
        return True

    def evict(self, agent: str, gen: int, code: int) -> None:
        """Close the agent's session if its generation is `gen` or older."""
        session = self._sessions.get(agent)
        if session is not None and session.gen <= gen:
            session.close(code, meaning_of(code, "closed by another node"))
