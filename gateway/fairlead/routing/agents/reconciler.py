"""Compares every link of this node with its row in Redis, and repairs what differs.

A comparison is requested by everything that may make them differ: this node joined again (its row was lost), its
heartbeat came so late that others took it for dead (SIGSTOP, a partition), or Redis came back (a killed server may have
lost its last writes). Without a request there is one every ten minutes, for differences that nothing has reported, such
as a lost eviction. If the row is missing or older than the link, the agent is claimed again; if the row names a newer
owner, the link is closed. All agents are written into the index again. The node runs its loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque

from fairlead.errors import BusUnavailable
from fairlead.fleet.directory_replies import Overtaken
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.delivery.takeover import Takeover
from fairlead.routing.eviction import close_superseded
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import wait_for_redis
from fairlead.telemetry.metrics import Metrics
from fairlead.wire.close_codes import CloseCode

logger = logging.getLogger(__name__)

BATCH = 200
PAUSE = 0.1
"""Seconds between batches: 2,000 links a second, so a full node takes ten seconds and leaves room for commands."""
FLEET_RATE = 25_000
"""Links a second that all nodes together compare, since all of them begin at once when Redis comes back: an eighth of
what one Redis answers, or most of it if every agent must be claimed again. A million links take less than AWAY_MS."""
FAILED_PAUSE = 5.0
"""Seconds from a comparison that failed because of a defect to the next one, times a random factor of 0.5 to 1.5."""
PERIOD = 600.0
"""Seconds between two comparisons that nothing requested: 30 reads a second on a full node."""


class Reconciler:
    def __init__(
        self,
        fleet: FleetStore,
        hub: Hub,
        takeover: Takeover,
        tasks: BackgroundTasks,
        membership: Membership,
        metrics: Metrics,
    ) -> None:
        self._store = fleet.store
        self._directory = fleet.directory
        self._hub = hub
        self._takeover = takeover
        self._tasks = tasks
        self._membership = membership
        self._metrics = metrics

    async def run(self) -> None:
        reconciliation = self._membership.reconciliation
        while True:
            await reconciliation.begin(PERIOD * random.uniform(0.8, 1.2))
            try:
                await self._reconcile()
            except Exception:
                logger.exception("comparing links with their rows failed; it begins again in a few seconds")
                reconciliation.request()  # for the links that were not compared
                await asyncio.sleep(FAILED_PAUSE * random.uniform(0.5, 1.5))
            reconciliation.end()

    async def _reconcile(self) -> None:
        waiting = deque(session for session in self._hub if session.ready)
        reclaimed = lost = 0
        while waiting:
            if not self._membership.alive:  # other nodes take our agents over now
                await asyncio.sleep(random.uniform(0.5, 1.0))
                continue
            batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
            owners = await self._directory.owners([session.agent for session in batch])
            try:
                await self._directory.restore_index([session.agent for session in batch])
            except BusUnavailable as e:
                owners.append(e)
            if any(isinstance(owner, BusUnavailable) for owner in owners):
                waiting.extendleft(reversed(batch))
                await wait_for_redis(self._store, 1.0)
                continue
            # An agent whose row cannot be read is claimed again too: the claim mends the row, or its error ends the
            # link.
            differing = [
                session
                for session, owner in zip(batch, owners, strict=True)
                if isinstance(owner, Exception) or (owner.lease, owner.gen) != (self._membership.lease, session.gen)
            ]
            answers = await asyncio.gather(*map(self._claim_again, differing), return_exceptions=True)
            for session, answer in zip(differing, answers, strict=True):
                if isinstance(answer, BusUnavailable):
                    waiting.append(session)
                elif isinstance(answer, BaseException):
                    logger.error("claiming %s again failed", session.agent, exc_info=answer)
                    session.close(CloseCode.INTERNAL, "the gateway could not register this agent again")
                elif answer:
                    reclaimed += 1
                elif session.open:
                    lost += 1
                    self._tasks.spawn(close_superseded(session, self._directory, self._store))
            await asyncio.sleep(max(PAUSE, BATCH * len(self._membership.living()) / FLEET_RATE))
        self._metrics.reclaimed.inc(reclaimed)
        if reclaimed or lost:
            logger.warning("claimed %d agents again, lost %d to newer links", reclaimed, lost)

    async def _claim_again(self, session: Session) -> bool:
        """Claim the agent of this session again. Returns False if a newer link owns the agent, or this link is
        closed."""
        if not session.ready:
            return False
        membership, known = self._membership, session.identity
        claimed = await self._directory.claim(
            session.agent, membership.lease, known.boot, known.conn, known.sid, known.facts,
            membership.valid_until(), own_gen=session.gen, known=True, journal=known.journal,
        )  # fmt: skip
        if isinstance(claimed, Overtaken):
            if claimed.why == "late":
                raise BusUnavailable("the claim came too late and was refused")
            return False
        session.claimed(claimed.gen)
        if not claimed.previous_gen:
            self._metrics.labels_lost.inc()
        taken = await self._takeover.fence(session, claimed.open)
        if session.ready:
            # Commands that are open on this link continue; those that were dispatched meanwhile are delivered.
            streams = session.streams or {}
            self._takeover.resume(session, {c: found for c, found in taken.items() if c not in streams}, {})
        return True
