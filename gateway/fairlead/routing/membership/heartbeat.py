"""Keeps this node in the fleet: it renews the node's row and reads what the other nodes report and whether the data is
still there.

The node starts it, runs its loop and stops it. Each heartbeat reads the fleet's clock, the table of nodes and the epoch
of the data. If the node's row is missing, the node joins again under a new epoch. If heartbeats fail for longer than a
grace, the links are closed one after the other, because another node may reach Redis; not if Redis answers and refuses
all writes, because no other node can claim the agents then. It compares no link with its row:
it requests that from the reconciler."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
from collections.abc import Callable, Mapping

from fairlead.bus.doorbell import MembershipChanged
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable, WritesRefused
from fairlead.fleet.data_epoch import DataEpoch
from fairlead.fleet.node_table import NodeRow
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.load_report import LoadReport
from fairlead.routing.membership.membership import Membership
from fairlead.routing.membership.node_name import NodeName
from fairlead.store.errors import WRONG_TYPE, StoreError
from fairlead.store.servers.server_identity import ServerIdentity
from fairlead.telemetry.metrics import Metrics
from fairlead.wire.close_codes import CloseCode

logger = logging.getLogger(__name__)

PERIOD = 5.0
"""Seconds between heartbeats: three may be missed before other nodes take this one for dead."""
RETRY = 0.5
"""Seconds from a failed heartbeat to the next one, so that a node is back soon after Redis is. They are multiplied by a
random factor of 0.5 to 1.5, so that a fleet whose Redis was away does not come back at one moment."""
CLOSING = 60.0
"""Seconds over which the links are closed after the grace. If Redis does not answer because it is overloaded, all nodes
close links, and a whole fleet that came back at one moment would keep it overloaded: those links that are still open
when it answers again stay."""


class Heartbeat:
    def __init__(
        self,
        fleet: FleetStore,
        inbox: Inbox,
        hub: Hub,
        name: NodeName,
        membership: Membership,
        report: LoadReport,
        metrics: Metrics,
        grace: float,
    ) -> None:
        """`grace` is the number of seconds without an answered heartbeat after which links are closed."""
        self._store = fleet.store
        self._rows = fleet.node_rows
        self._data_epochs = fleet.data_epochs
        self._preferred_revisions = fleet.preferred_revisions
        self._rebalance_targets = fleet.rebalance_targets
        self._inbox = inbox
        self._hub = hub
        self._name = name
        self.membership = membership
        self._report = report
        self._readiness = report.readiness
        self._readiness.on_exclusion = self.send_soon
        self.metrics = metrics
        self._grace = grace
        self.on_servers: Callable[[Mapping[str, ServerIdentity]], None] = lambda _: None
        """Called at each heartbeat with the servers that answer."""
        self._serving_server = fleet.serving_server
        self._soon = asyncio.Event()
        self._closing: list[Session] | None = None
        """The links that are still to be closed because Redis has been away for longer than the grace."""
        self._closing_links, self._closing_since = 0, 0.0
        """The number of links when that began, and the loop's time."""

    async def join(self) -> None:
        """Send the first heartbeat and tell the other nodes. Raises ConfigError if another process has the name."""
        while not await self._try_to_join():
            pass  # another process that was started at the same moment was faster
        self._announce_change()

    async def _try_to_join(self) -> bool:
        """Try a second time if a key holds a value that is not Fairlead's, which the first attempt has removed (see
        `key_types`)."""
        try:
            return await self._send(join=True, replaces=await self._name.wait_until_free())
        except StoreError as e:
            if e.reply_code != WRONG_TYPE:
                raise
            return await self._send(join=True, replaces=await self._name.wait_until_free())

    async def run(self) -> None:
        while True:
            missed = self.membership.since_heartbeat >= PERIOD * 1.5
            await self._pause(RETRY * random.uniform(0.5, 1.5) if missed else PERIOD)
            try:
                await self._send(join=False)
                await self._inbox.refresh()
                await self._inbox.check()
            except BusUnavailable as e:
                logger.debug("no heartbeat: %s", e)
                self.membership.problem = e.message
                # A server that refuses writes does so for every node: an agent would find no other one to claim it.
                if self.membership.since_heartbeat > self._grace and not isinstance(e, WritesRefused):
                    self._close_links()
            except Exception:
                logger.exception("a heartbeat failed")

    def send_soon(self) -> None:
        """Send the next heartbeat now, because this node's state has changed in a way that others should know at
        once."""
        self._soon.set()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._soon.wait()
        except TimeoutError:
            pass
        self._soon.clear()

    async def leave(self) -> None:
        """Remove this node's row, if it has joined, and tell the other nodes."""
        membership = self.membership
        if membership.since_heartbeat == float("inf"):
            return
        try:
            await self._rows.mark_stopped(membership.node, membership.epoch, membership.now(), self._hub.left)
            self._announce_change()
            await asyncio.sleep(0)  # doorbells are sent in the next turn of the loop; closing the inbox waits for them
        except BusUnavailable:
            pass  # the row expires

    async def refresh_table(self) -> None:
        """Read the table of nodes now and not with the next heartbeat, because a node has joined or left."""
        try:
            await self._read_table(self.membership.now())
        except BusUnavailable as e:
            logger.debug("the table of nodes is read with the next heartbeat: %s", e)

    async def _read_table(self, now: int) -> None:
        """Read which nodes are alive, and all fields of their rows only while linked agents may be missing in Redis."""
        membership = self.membership
        if membership.index_incomplete:
            membership.table = await self._rows.read_all(now, membership.alive_since)
        else:
            membership.table = await self._rows.refresh(membership.table, now, membership.alive_since)

    def _announce_change(self) -> None:
        """Tell all other live nodes that this one has joined or left."""
        for row in self.membership.table.rows():
            if row.lease != self.membership.lease and row.alive(self.membership.now()):
                self._inbox.ring(row.lease, (MembershipChanged(),))

    async def _send(self, *, join: bool, replaces: str = "") -> bool:
        """Send one heartbeat. Returns False if the node is not in the fleet: it could not join, or its row is
        missing."""
        membership = self.membership
        fields = self._report.fields() | {
            "process": self._name.process,
            "doubtful": int(membership.reconciliation.pending and len(self._hub) > 0),
        }
        accepted, now = await self._rows.renew(membership.node, membership.epoch, fields, begin=join, replaces=replaces)
        if not accepted:
            if not join:
                await self._join_again()
            return False
        self._readiness.name_taken = ""
        first = membership.since_heartbeat == float("inf")
        self._closing = None
        if membership.heartbeat_answered(now) and not first:
            membership.reconciliation.request()  # other nodes took this one for dead
        await self._read_table(now)
        try:
            self.on_servers(await self._serving_server.read_all())
            await self._check_data_epoch(now)
            target = self._rebalance_targets.read(membership.node)
            membership.set_directives(await self._preferred_revisions.read(), await target)
        except BusUnavailable:
            if not self._store.partly_away:
                raise
            # One primary of a Cluster is away: what was read last holds for as long as it says itself.
        self._readiness.exclusion()  # if it begins now, the operator knows before a probe fails
        return True

    async def _join_again(self) -> None:
        """Join under a new epoch, because Redis has no row of this one, and claim all agents that are still here
        again."""
        holder, replaces = await self._name.holder(self.membership.epoch)
        if holder is not None:
            self._yield_to(holder)
            return
        self.metrics.fencings.inc()
        logger.warning("this node's row is missing in Redis: joining again")
        self.membership.epoch = secrets.token_hex(6)
        # Requested before the first heartbeat of the new epoch, whose answer may be lost: every claim names the old
        # one.
        self.membership.reconciliation.request()
        await self._inbox.rename(self.membership.epoch)
        if await self._send(join=True, replaces=replaces):
            self._announce_change()

    def _yield_to(self, holder: NodeRow) -> None:
        """Close all links, because another process took this node's name while this one was frozen or cut off. That
        process keeps the name, since its agents count as much as ours. This one tries again with each heartbeat."""
        taken = self._name.taken_by(holder)
        if not self._readiness.name_taken:
            logger.error("%s; this node closes its links until that one has left: give one of them another name", taken)
            for session in self._hub:
                session.close(CloseCode.RESTART, "another gateway has taken this node's name: connect again")
        self._readiness.name_taken = taken

    async def _check_data_epoch(self, now: int) -> None:
        """Check that Redis still has the data that it had."""
        known = self.membership.data_epoch
        epoch = await self._data_epochs.read()
        if epoch is None:
            epoch = await self._data_epochs.mark(DataEpoch(secrets.token_hex(8), now if known else 0))
        self.membership.data_epoch = epoch
        if known is not None and epoch != known:
            self.metrics.data_lost.inc()
            self.membership.reconciliation.request()
            logger.error(
                "Redis has lost its data: commands that were open are lost, and so are the labels of agents, which "
                "must be set again; the agents of this node are being claimed again"
            )

    def _close_links(self) -> None:
        """Close as many links as are due by now."""
        now = asyncio.get_running_loop().time()
        if self._closing is None:
            self._closing = [*self._hub]
            random.shuffle(self._closing)
            self._closing_links, self._closing_since = len(self._closing), now
        # Counted from here, as a frozen process may find that the grace was over long ago.
        due = math.ceil(self._closing_links * (now - self._closing_since + RETRY) / CLOSING)
        while self._closing and self._closing_links - len(self._closing) < due:
            self._closing.pop().close(CloseCode.BUS_AWAY, "the gateway has lost Redis: connect elsewhere")
