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
from typing import Final

from fairlead.errors import BusUnavailable, FairleadError
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
    def __init__(self, fleet: FleetStore) -> None:
        self._store = fleet.store
        self._directory = fleet.directory
        self._waiting: dict[Session, None] = {}
        self._added = asyncio.Event()

    def add(self, session: Session) -> None:
        self._waiting[session] = None
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
                self._waiting.pop(session, None)
                if session.ready:
                    part.append(session)
            if part:
                await self._write_some(part)

    async def _write_some(self, sessions: list[Session]) -> None:
        errors: list[FairleadError | None]
        try:
            known = [(session.agent, session.identity) for session in sessions]
            errors = await self._directory.change_facts([(agent, one.sid, one.facts) for agent, one in known])
        except BusUnavailable as e:
            errors = [e] * len(sessions)
        for session, error in zip(sessions, errors, strict=True):
            if isinstance(error, BusUnavailable):
                self.add(session)
            elif error is not None:  # the row is of another type: comparing links with their rows mends it
                logger.warning("the changed facts of %s could not be written: %s", session.agent, error)
        if any(isinstance(error, BusUnavailable) for error in errors):
            await wait_for_redis(self._store, 1.0)
