"""Writes the facts that agents tell anew on their links into Redis, some at a time.

`LinkHandler` hands over each session whose facts have changed, and the node runs the loop. A session waits once,
however often its agent tells something, and is written with what its facts are by then: so an agent causes one write a
second at most, and what waits is never more than the links of this node. While Redis is away the facts wait, and claims
that are made meanwhile have them too. What an agent tells is not confirmed: after a lost link its next hello has all
facts.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from fairlead.errors import BusUnavailable, FairleadError
from fairlead.fleet.columns.facts_change import FactsChange
from fairlead.fleet.directory import IN_ONE_CALL
from fairlead.hub.session import Session
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.timeouts import wait_for_redis

logger = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds, times a random factor of 0.5 to 1.5, between two rounds. A selector finds the new facts after so long."""
RATE: Final = 2_000
"""Agents a second that are written, at 20 µs of Redis each: a change of the whole fleet at once is spread."""


class ChangedFacts:
    def __init__(self, fleet: FleetStore, now: Callable[[], int]) -> None:
        """`now` is Redis TIME in ms, as far as this node knows it."""
        self._now = now
        self._store = fleet.store
        self._directory = fleet.directory
        self._waiting: dict[Session, bytes] = {}
        """What waits, each with the facts that its row has, as far as this node knows."""
        self._added = asyncio.Event()

    def add(self, session: Session, before: bytes) -> None:
        """`before` are the facts, as JSON, that the session had until now."""
        self._waiting.setdefault(session, before)
        self._added.set()

    async def run(self) -> None:
        while True:
            await self._added.wait()
            await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))
            self._added.clear()
            await self._write(list(self._waiting))

    async def _write(self, sessions: list[Session]) -> None:
        for at in range(0, len(sessions), IN_ONE_CALL):
            if at:
                await asyncio.sleep(IN_ONE_CALL / RATE)
            part = []
            for session in sessions[at : at + IN_ONE_CALL]:
                before = self._waiting.pop(session, None)
                if before is not None and session.ready:
                    part.append((session, before))
            if part:
                await self._write_some(part)

    async def _write_some(self, part: list[tuple[Session, bytes]]) -> None:
        errors: list[FairleadError | None]
        now = self._now()
        known = [(session.agent, session.identity, before) for session, before in part]
        try:
            errors = await self._directory.change_facts(
                [FactsChange(agent, one.sid, before, one.facts, now) for agent, one, before in known]
            )
        except BusUnavailable as e:
            errors = [e] * len(part)
        for (session, before), error in zip(part, errors, strict=True):
            if isinstance(error, BusUnavailable):
                self.add(session, before)
            elif error is not None:  # the row is of another type: comparing links with their rows mends it
                logger.warning("the changed facts of %s could not be written: %s", session.agent, error)
        if any(isinstance(error, BusUnavailable) for error in errors):
            await wait_for_redis(self._store, 1.0)
