"""Keeps the autoscaler's history of one fleet in memory and in the fleet's Redis, so that the next leader continues it.

Each reconciler has one. Its first pass with Redis reads what the last leader wrote, and every pass writes. A history
that cannot be used is logged and never stops a pass: this leader then watches the fleet for a whole window itself.
"""

from __future__ import annotations

import logging

from fairlead.errors import BusUnavailable
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.document import MOST_BYTES, HistoryDocument, UnusableHistory, decode_history
from fairlead_operator.autoscaler.observation import NodeMetrics
from fairlead_operator.inputs.fleet_redis import FleetRedis
from fairlead_operator.resources.owner import Owner

logger = logging.getLogger(__name__)


class HistoryStore:
    def __init__(self, redis: FleetRedis, owner: Owner) -> None:
        self._redis = redis
        self._owner = owner
        self.history = History()
        self._ahead = 0.0
        """Seconds by which the history's clock, which one leader passes on to the next, is ahead of this process's
        clock."""
        self._looked_up = False

    async def begin_pass(self, nodes: NodeMetrics | None, most: int, now: float) -> float:
        """Returns `now` by the history's clock. `nodes` are those of this pass, None if Redis cannot be read; `most` is
        the greatest number of links that the spec allows.
        """
        if nodes is not None and not self._looked_up:
            try:
                found = await self._redis.read_history(MOST_BYTES + 1)
                self._looked_up = True
                if found is not None:
                    self._continue(found, nodes.now, most, now)
            except BusUnavailable as e:
                logger.warning("%s/%s: the history is read later: %s", self._owner.namespace, self._owner.name, e)
            except UnusableHistory as e:
                self._looked_up = True
                message = "%s/%s: the last leader's history is ignored: %s"
                logger.warning(message, self._owner.namespace, self._owner.name, e.message)
        return now + self._ahead

    def _continue(self, found: bytes, redis_now: int, most: int, now: float) -> None:
        """Raises UnusableHistory."""
        namespace, name = self._owner.namespace, self._owner.name
        document = decode_history(found, self._owner.uid, redis_now)
        gap = document.gap(redis_now)
        self.history = document.history.resume(gap, most)
        self._ahead = document.clock + gap - now
        logger.info("%s/%s: continuing the last leader's history, which is %.0f s old", namespace, name, gap)

    async def end_pass(self, nodes: NodeMetrics | None, clock: float) -> None:
        """Writes the history. `clock` is what `begin_pass` returned."""
        if nodes is None or not self._looked_up:
            return
        document = HistoryDocument(gateway=self._owner.uid, at=nodes.now, clock=clock, history=self.history)
        try:
            await self._redis.write_history(document.encode())
        except (BusUnavailable, UnusableHistory) as e:
            logger.warning("%s/%s: the history was not written: %s", self._owner.namespace, self._owner.name, e.message)
