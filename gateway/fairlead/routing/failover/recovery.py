"""Brings Redis back to what the nodes have told, after a failover or a restart has lost the last moment.

The node calls `connected` for each new connection to Redis, and the heartbeat `seen` with the servers that answer: so a
failover behind an address that stays the same is noticed too. Each server is compared by itself (`Comparison`), so that
of two primaries of a Cluster that are lost at once, the first one that is back does not wait for the other. The links
are compared with their rows by the reconciler, which the same events call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from fairlead.hub.hub import Hub
from fairlead.routing.failover.comparison import Comparison
from fairlead.routing.failover.repeated_steps import RepeatedSteps
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.store.servers.server_identity import ServerIdentity
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

SERVERS_LIMIT: Final = 256
"""Servers that are remembered: replicas that take over have addresses of their own, and in Kubernetes new ones."""


class Recovery:
    def __init__(
        self, fleet: FleetStore, hub: Hub, membership: Membership, steps: RepeatedSteps, metrics: Metrics
    ) -> None:
        self._fleet = fleet
        self._hub = hub
        self._membership = membership
        self._steps = steps
        self._metrics = metrics
        self._comparisons: dict[str, Comparison] = {}
        """By the name of the server, the one that was connected last at the end."""
        self._wanted = asyncio.Event()

    def connected(self, owner: str) -> None:
        """A connection to this server is new: the server behind it may be another one."""
        self._of(owner).close()
        self._wanted.set()
        self._membership.reconciliation.request()

    def seen(self, servers: Mapping[str, ServerIdentity]) -> None:
        """These servers have answered at a heartbeat."""
        for owner, server in servers.items():
            comparison = self._comparisons.get(owner)
            if comparison is None or self._fleet.gate.is_closed(owner):
                continue
            if comparison.known and server.id != comparison.known:
                logger.warning("the server behind the address of Redis has changed, and the connection has not")
                self.connected(owner)
            else:
                comparison.check_note()
                self._wanted.set()

    def _of(self, owner: str) -> Comparison:
        comparison = self._comparisons.pop(owner, None)
        if comparison is None:
            comparison = Comparison(
                owner, self._fleet, self._hub, self._membership, self._steps, self._metrics
            )  # fmt: skip
            if len(self._comparisons) >= SERVERS_LIMIT:
                self._forget_one()
        self._comparisons[owner] = comparison
        return comparison

    def _forget_one(self) -> None:
        owners = self._fleet.store.owners()
        for owner, comparison in self._comparisons.items():
            if owner not in owners and not comparison.running and not self._fleet.gate.is_closed(owner):
                del self._comparisons[owner]
                return

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                for comparison in self._comparisons.values():
                    if comparison.wanted and not comparison.running:
                        comparison.running = True
                        group.create_task(comparison.run())
