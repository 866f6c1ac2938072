"""The links whose agents were told to move, until they are gone: says which of them have stayed too long.

`drain` and `rebalancer` have one each. An agent that moves opens its new link first, so its old one is closed only some
time after its slot; usually the agent has left it by then. Slots are spaced by the budget of moves, and so are the
closes of links that stay: time in which this process did not run does not count. Otherwise a process that was stopped
or had no CPU for some seconds would close all links at once whose time has passed meanwhile, before it has read that
their agents left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fairlead.hub.hub import Hub
from fairlead.hub.session import Session

LATE = 1.0
"""The most seconds between two calls that count. A process that has missed more than that catches up with no more."""


class LeavingLinks:
    def __init__(self, now: float) -> None:
        self._links: deque[tuple[float, Session]] = deque()
        """The links with the times of their slots, in the order in which their agents were told."""
        self._given_up: list[Session] = []
        """The links that the caller was given to close, until their connections are over."""
        self._advanced_at = now
        self._ran = 0.0
        """Seconds for which this process has run, without those that it missed. Slots are times of this clock."""

    def __len__(self) -> int:
        """The number of links whose agents were told to move and that were not given up, including closed ones."""
        return len(self._links)

    def present(self, hub: Hub) -> int:
        """Agents of `hub` that were told to move and still have that link here. One that is being closed counts until
        its connection is over, which takes seconds when the agent does not answer; one whose agent has come back to
        this node does not."""
        sessions = (*(session for _, session in self._links), *self._given_up)
        return sum(hub.get(session.agent) is session for session in sessions)

    def add(self, session: Session, slot: float, now: float) -> None:
        """Record that the agent was told at the time `now` to move in `slot` seconds."""
        self._advance(now)
        self._links.append((self._ran + slot, session))

    def take_late(self, grace: float, now: float) -> Iterator[Session]:
        """Remove the links that have had `grace` seconds since their slots, for the caller to close. A link without a
        welcome gets no grace."""
        self._advance(now)
        self._given_up = [session for session in self._given_up if session.connection is not None]
        while self._links and self._links[0][0] + (grace if self._links[0][1].ready else 0.0) <= self._ran:
            session = self._links.popleft()[1]
            self._given_up.append(session)
            yield session

    def _advance(self, now: float) -> None:
        self._ran += min(now - self._advanced_at, LATE)
        self._advanced_at = now
