"""Gives up the leases of sessions that ended, however long Redis is away.

Filled by attendance, run as one loop by the node. The queue needs no bound of its own: it holds at most what had a
link, and shrinks when Redis answers. A lease that could not be given up before the process ends dies with the
node's row.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from fairlead.errors import BusUnavailable
from fairlead.fleet.directory import Directory
from fairlead.hub.session import Session
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.answer import answers_or_errors
from fairlead.store.pipeliner import Pipeliner

logger = logging.getLogger(__name__)

BATCH = 256
"""A full batch of the store: more would only wait there, at the price of a frame each."""


@dataclass(frozen=True, slots=True)
class EndedSession:
    """The session `sid` of `agent` ended with `code` and `reason`; `drained`: it had been told to leave."""

    agent: str
    sid: str
    code: int
    drained: bool
    reason: str


class LeaseReleaser:
    def __init__(self, store: Pipeliner, directory: Directory) -> None:
        self._store = store
        self._directory = directory
        self._waiting: deque[EndedSession] = deque()
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """Leases that are still to be given up."""
        return len(self._waiting)

    def add(self, session: Session, code: int, reason: str) -> None:
        self._waiting.append(EndedSession(session.agent, session.sid, code, session.drained, reason[:123]))
        self._news.set()

    async def run(self) -> None:
        while True:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
            await self.release_some()

    async def release_some(self) -> None:
        """One batch; what Redis did not answer waits for the next."""
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
        answers = await answers_or_errors(
            [self._directory.release(d.agent, d.sid, d.code, d.drained, d.reason) for d in batch]
        )
        failed = []
        for ended, answer in zip(batch, answers, strict=True):
            if isinstance(answer, BusUnavailable):
                failed.append(ended)
            elif isinstance(answer, Exception):
                logger.error("the lease of %s could not be released", ended.agent, exc_info=answer)
        if failed:
            self._waiting.extend(failed)
            await wait_for_redis(self._store, 1.0)
