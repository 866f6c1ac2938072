"""This node's life in the fleet: the row that it beats, the table of the others, and what follows when either is lost.

Owned by the node, which begins it, runs its loop and ends it. Each beat tells the fleet's clock and the era of the
data. A beat that finds this node's row gone begins another life; beats that fail for longer than the grace give the
links up, since another node may have Redis. It compares no link with its row: that is the `Reconciler`'s, which is told
of every doubt.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets

from fairlead.bus.doorbell import MembershipChanged
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet.data_epoch import DataEpoch, DataEpochs
from fairlead.fleet.node_rows import NodeRows
from fairlead.fleet.schema import NodeRow
from fairlead.hub.hub import Hub
from fairlead.routing.membership.membership import Membership
from fairlead.routing.membership.node_name import NodeName
from fairlead.telemetry.loop_lag import LoopLag
from fairlead.telemetry.metrics import Metrics
from fairlead.version import __version__
from fairlead.wire.close_codes import CloseCode

logger = logging.getLogger(__name__)

PERIOD = 5.0
"""Seconds between beats: three may be missed before others take this node for dead."""
AGAIN = 0.5
"""Seconds after a beat that failed, so that a node is back soon after Redis is; drawn from half to one and a half of
it, so that a fleet whose Redis was away does not come back in one moment."""


class Heartbeat:
    def __init__(
        self,
        load: NodeRows,
        eras: DataEpochs,
        inbox: Inbox,
        hub: Hub,
        name: NodeName,
        membership: Membership,
        pulse: LoopLag,
        metrics: Metrics,
        capacity: int,
        grace: float,
    ) -> None:
        """`capacity`: links that this node takes. `grace`: seconds without a beat before its links are given up."""
        self._load = load
        self._eras = eras
        self._inbox = inbox
        self._hub = hub
        self._name = name
        self.name_taken = ""
        """Who bears this node's name instead of it, in words; "" when nobody does."""
        self._membership = membership
        self._pulse = pulse
        self._metrics = metrics
        self._capacity = capacity
        self._grace = grace

    async def begin(self) -> None:
        """The first beat of this process, told to the others. Raises ConfigError when another bears the node's name."""
        while not await self._beat(begin=True, replaces=await self._name.wait_until_free()):
            pass  # another process that was started in the same moment was faster
        self._call_muster()

    async def run(self) -> None:
        while True:
            missed = self._membership.since_heartbeat >= PERIOD * 1.5
            await asyncio.sleep(AGAIN * random.uniform(0.5, 1.5) if missed else PERIOD)
            try:
                await self._beat(begin=False)
                await self._inbox.refresh()
                await self._inbox.check()
            except BusUnavailable as e:
                logger.debug("no beat: %s", e)
                if self._membership.since_heartbeat > self._grace:
                    self._give_up_links()
            except Exception:
                logger.exception("a beat failed")

    async def leave(self) -> None:
        """End this life on purpose, if it has begun, and tell the others."""
        if self._membership.since_heartbeat == float("inf"):
            return
        try:
            await self._load.mark_stopped(self._membership.node, self._membership.epoch, self._membership.now())
            self._call_muster()
            await asyncio.sleep(0)  # rings leave in the next turn of the loop; closing the inbox waits behind them
        except BusUnavailable:
            pass  # the row grows old by itself

    async def muster(self) -> None:
        """A node has come or gone: read the table before the next beat."""
        try:
            await self._read_table(self._membership.now())
        except BusUnavailable as e:
            logger.debug("the table of nodes is read at the next beat: %s", e)

    async def _read_table(self, now: int) -> None:
        """Who is alive; and all that the rows tell only while they may tell of links that are missing in Redis."""
        membership = self._membership
        if membership.incomplete:
            membership.table = await self._load.read_all(now, membership.alive_since)
        else:
            membership.table = await self._load.refresh(membership.table, now, membership.alive_since)

    def _call_muster(self) -> None:
        """This node has come or goes: the others should know before their next beat."""
        for row in self._membership.table.rows():
            if row.lease != self._membership.lease and row.alive(self._membership.now()):
                self._inbox.ring(row.lease, (MembershipChanged(),))

    async def _beat(self, *, begin: bool, replaces: str = "") -> bool:
        """False when a life that was to begin could not."""
        membership = self._membership
        good, now = await self._load.renew(
            membership.node, membership.epoch, self._counts(), begin=begin, replaces=replaces
        )  # fmt: skip
        if not good:
            if not begin:
                await self._begin_anew()
            return False
        self.name_taken = ""
        first = membership.since_heartbeat == float("inf")
        if membership.heartbeat_answered(now) and not first:
            self._membership.reconciliation.request()  # the others took this node for dead
        await self._read_table(now)
        await self._check_data_epoch(now)
        return True

    async def _begin_anew(self) -> None:
        """Redis does not know this life any more: begin another, and claim again what is still ours."""
        holder, replaces = await self._name.holder(self._membership.epoch)
        if holder is not None:
            self._yield_to(holder)
            return
        self._metrics.fencings.inc()
        logger.warning("this node's row is gone from Redis: beginning a new life")
        self._membership.epoch = secrets.token_hex(6)
        # Before the first beat of the new life, whose answer may be lost. No link is right before that one is good.
        self._membership.reconciliation.request()
        await self._inbox.rename(self._membership.epoch)
        if await self._beat(begin=True, replaces=replaces):
            self._call_muster()

    def _yield_to(self, holder: NodeRow) -> None:
        """Another process has taken this node's name while this one was frozen or cut off. It keeps the name: its
        agents are as good as ours. This node serves nobody, and looks again with each beat whether the name is free."""
        taken = self._name.taken_by(holder)
        if not self.name_taken:
            logger.error("%s; this node closes its links until that one has left: give one of them another name", taken)
            for session in self._hub:
                session.close(CloseCode.RESTART, "another gateway has taken this node's name: connect again")
        self.name_taken = taken

    async def _check_data_epoch(self, now: int) -> None:
        """See whether Redis still has the data that it had."""
        known = self._membership.data_epoch
        era = await self._eras.read() or await self._eras.mark(DataEpoch(secrets.token_hex(8), now if known else 0))
        self._membership.data_epoch = era
        if known is not None and era != known:
            self._metrics.data_lost.inc()
            self._membership.reconciliation.request()
            logger.error(
                "Redis has lost its data: commands that were open are lost, and so are the labels of agents, which "
                "must be set again; the agents of this node are being claimed again"
            )

    def _give_up_links(self) -> None:
        for session in self._hub:
            session.close(CloseCode.BUS_AWAY, "the gateway has lost Redis: connect elsewhere")

    def _counts(self) -> dict[str, str | int | float]:
        return {
            "state": "draining" if self._hub.draining else "serving",
            "links": self._hub.links,
            "capacity": self._capacity,
            "accepted": self._hub.accepted,
            "refused": self._hub.refused,
            "lag_ms": round(self._pulse.last * 1000, 3),
            "in_flight": self._hub.totals.streams,
            "version": __version__,
            "process": self._name.process,
            "doubtful": int(self._membership.reconciliation.pending and len(self._hub) > 0),
        }
