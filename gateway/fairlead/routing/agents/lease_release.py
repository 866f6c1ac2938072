"""Releases the leases of agents whose sessions ended, however long Redis is away.

`LinkHandler` and `Registration` fill its queue, and the node runs its loop. The queue needs no bound of its own: it
holds at most the agents that had a link, and shrinks when Redis answers. A lease that could not be released before the
process ends expires with the node's row.
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
from fairlead.store.backlog import Priority
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

BATCH = 256
"""Leases released at once: more than one batch of the store takes. More of them would only wait there."""
BESIDE_CLAIMS = 16
"""Leases released at once while claims and other calls of their priority wait: when a fleet has lost its links and
comes back, agents wait for their claims, and nobody for these."""


@dataclass(frozen=True, slots=True)
class EndedSession:
    """The session `sid` of `agent` ended with `code` and `reason`. `drained` says that it was told to leave."""

    agent: str
    sid: str
    code: int
    drained: bool
    reason: str


class LeaseReleaser:
    def __init__(self, store: Store, directory: Directory) -> None:
        self._store = store
        self._directory = directory
        self._queue: deque[EndedSession] = deque()
        self._added = asyncio.Event()

    def __len__(self) -> int:
        """The number of leases to be released."""
        return len(self._queue)

    def add(self, session: Session, code: int, reason: str) -> None:
        self._queue.append(EndedSession(session.agent, session.sid, code, session.drained, reason[:123]))
        self._added.set()

    async def run(self) -> None:
        while True:
            if not self._queue:
                self._added.clear()
                await self._added.wait()
            await self.release_some()

    async def release_some(self) -> None:
        """Release one batch. What Redis did not answer goes back into the queue."""
        most = BESIDE_CLAIMS if self._store.waiting(Priority.BACKGROUND) else BATCH
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), most))]
        answers = await answers_or_errors(
            [self._directory.release(e.agent, e.sid, e.code, e.drained, e.reason) for e in batch]
        )
        failed = []
        for ended, answer in zip(batch, answers, strict=True):
            if isinstance(answer, BusUnavailable):
                failed.append(ended)
            elif isinstance(answer, Exception):
                logger.error("the lease of %s could not be released", ended.agent, exc_info=answer)
        if failed:
            self._queue.extend(failed)
            await wait_for_redis(self._store, 1.0)
