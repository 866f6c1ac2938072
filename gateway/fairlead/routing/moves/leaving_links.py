"""The links whose agents were told to move, until they are gone: says which of them have stayed too long.

`drain` and `rebalancer` have one each. An agent that moves opens its new link first, so its old one is closed only
some time after its slot; usually the agent has left it by then. Slots are spaced by the budget of moves, and so are the
closes of links that stay: time in which this process did not run does not count. Otherwise a process that was stopped
or had no processor for some seconds would close all links at once whose time has passed meanwhile, before it has read
that their agents left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fairlead.hub.hub import Hub
from fairlead.hub.session import Session

LATE = 1.0
"""Seconds between two looks that count at most: of what a process has missed, it catches up with this much."""


class LeavingLinks:
    def __init__(self, now: float) -> None:
        self._links: deque[tuple[float, Session]] = deque()
        """With the times of their slots, in the order in which their agents were told."""
        self._given_up: list[Session] = []
        """Those that the caller has been given to close, until their connections are over."""
        self._looked_at = now
        self._ran = 0.0
        """Seconds for which this process has run, without those that it missed. Slots are times of this clock."""

    def __len__(self) -> int:
        """Links whose agents were told to move and that have not been given up, closed ones included."""
        return len(self._links)

    def present(self, hub: Hub) -> int:
        """Agents of `hub` that were told to move and still have that link here. One that is being closed counts until
        its connection is over, which takes seconds when the agent does not answer; one whose agent has come back to
        this node does not."""
        sessions = (*(session for _, session in self._links), *self._given_up)
        return sum(hub.get(session.agent) is session for session in sessions)

    def add(self, session: Session, slot: float, now: float) -> None:
        """The agent was told at the time `now` to move in `slot` seconds."""
        self._look(now)
        self._links.append((self._ran + slot, session))

    def take_late(self, grace: float, now: float) -> Iterator[Session]:
        """Remove the links that have had `grace` seconds since their slots, for the caller to close. One without a
        welcome has none to wait for: it goes at its slot."""
        self._look(now)
        self._given_up = [session for session in self._given_up if session.connection is not None]
        while self._links and self._links[0][0] + (grace if self._links[0][1].ready else 0.0) <= self._ran:
            session = self._links.popleft()[1]
            self._given_up.append(session)
            yield session

    def _look(self, now: float) -> None:
        self._ran += min(now - self._looked_at, LATE)
        self._looked_at = now
