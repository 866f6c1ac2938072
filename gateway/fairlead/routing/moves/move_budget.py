"""When this node may move its next agents: its part of the budget of moves that all nodes of the fleet share.

`drain` and `rebalancer` ask it. The budget is in Redis (see `fleet.moves`), so that all nodes that move agents at the
same time do not move more per second than the others can accept. While no operator sets the rate, this node computes it
from the nodes' rows, as the operator would. While Redis is away, the node grants itself its share of that rate: the
rate divided by the number of nodes, since all of them may be in the same position.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal, TypeAlias

from fairlead.errors import BusUnavailable
from fairlead.fleet.moves.move_bucket import Grant
from fairlead.fleet.moves.move_rate import RECEIVED_SHARE, move_rate
from fairlead.fleet.node_table import NodeTable
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.store.errors import StoreError
from fairlead.telemetry.metrics import Metrics
from fairlead.wire.messages import MoveReason

Purpose: TypeAlias = MoveReason | Literal["disconnect"]
"""What a move is for; a disconnected agent is one more that connects somewhere."""

logger = logging.getLogger(__name__)

BATCH_SECONDS = 0.25
"""Moves are asked for in batches for this time, so that several nodes get the budget in turns."""
TABLE_PERIOD = 1.0
"""Seconds between two readings of all nodes' rows while this node moves agents."""
TABLE_ROWS = 50
"""A reading of more rows than this is worth a longer period: many nodes read all rows when a large fleet is replaced,
and they should not make Redis answer more than some hundred rows per second each."""


class MoveBudget:
    def __init__(self, fleet: FleetStore, membership: Membership, metrics: Metrics, most: float) -> None:
        """`most` limits the moves a second of the whole fleet while no operator sets the rate."""
        self._moves = fleet.moves
        self._node_rows = fleet.node_rows
        self._membership = membership
        self._metrics = metrics
        self._most = most
        self.rate = 0.0
        """Moves a second of the whole fleet, as far as this node knows; 0 before it has asked."""
        self.alone = False
        """True if no other node serves: agents that leave this one cannot connect elsewhere."""
        self.accepted = 0.0
        """Moves a second that the other nodes can accept from this one, its equal part while several drain. Neither the
        operator nor a setting caps it."""
        self._own_rate = 0.0
        self._nodes = 1
        self._read_at = float("-inf")
        self._next = 0.0
        """The event loop's time from which on this node may move an agent without asking."""

    @property
    def batch(self) -> int:
        """The number of moves to ask for at once."""
        return max(1, int(self.rate * BATCH_SECONDS))

    async def take(self, why: Purpose, wanted: int) -> Grant:
        """Take up to `wanted` moves. The grant says when the first of them is due."""
        await self.refresh()
        loop = asyncio.get_running_loop()
        try:
            grant = await self._moves.take(wanted, self._own_rate)
        except (BusUnavailable, StoreError) as e:
            logger.debug("the budget of moves: %s", e)
            grant = self._own_share(wanted, loop.time())
        self.rate = grant.rate
        if grant.moves:
            self._next = loop.time() + grant.delay + grant.moves / grant.rate
            self._metrics.moves.labels(why, "granted").inc(grant.moves)
        return grant

    async def overdraw(self, why: MoveReason, count: int) -> None:
        """Record `count` moves that cannot wait any longer. Other nodes wait for them."""
        self._metrics.moves.labels(why, "overdrawn").inc(count)
        try:
            await self._moves.take(count, self._own_rate, overdraw=True)
        except (BusUnavailable, StoreError) as e:
            logger.debug("the budget of moves: %s", e)

    def _own_share(self, wanted: int, now: float) -> Grant:
        """What this node grants itself while Redis is away."""
        rate = self._own_rate / self._nodes
        if rate <= 0:
            return Grant(0, 0.0, TABLE_PERIOD)
        count = min(wanted, max(1, int(rate * BATCH_SECONDS)))
        return Grant(count, rate, max(0.0, self._next - now))

    async def refresh(self) -> None:
        """Find out what the other nodes can accept. The table in `membership` has old counts."""
        loop, membership = asyncio.get_running_loop(), self._membership
        if loop.time() - self._read_at < TABLE_PERIOD * max(1.0, self._nodes / TABLE_ROWS):
            return
        first = self._read_at == float("-inf")
        self._read_at = loop.time()
        now = membership.now()
        try:
            self._compute_rates(await self._node_rows.read_all(now, membership.alive_since), now)
        except (BusUnavailable, StoreError) as e:
            logger.debug("the rows of all nodes: %s", e)
            if first:
                self._compute_rates(membership.table, now - int(membership.since_heartbeat * 1000))

    def _compute_rates(self, table: NodeTable, now: int) -> None:
        """Compute the rates from a table that was up to date at the time `now` (ms)."""
        own = self._membership.node
        living = [row for row in table.rows() if row.node != own and row.alive(now)]
        serving = [row for row in living if row.state == "serving"]
        self.alone = not serving
        self._nodes = 1 + len(living)
        draining = 1 + sum(row.state == "draining" for row in living)
        spare = [row.spare_accept_rate for row in serving]
        self.accepted = RECEIVED_SHARE * sum(spare) / draining
        # If no other node serves, none can be overloaded: the whole fleet stops, or this node is the only one.
        self._own_rate = move_rate(spare, self._most) if serving else self._most
