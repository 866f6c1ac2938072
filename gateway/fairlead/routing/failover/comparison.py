"""Compares what this node knows with the data of one Redis server, after a failover or a restart may have lost the
last moment.

`Recovery` has one for each server, in a Cluster for each primary. If the server is another one, this node says again
what it has stored there lately and which commands its links have (`RepeatedSteps`), notes on the server that it has,
and waits for the others. Until then the server's gate is closed. It never waits for another server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from fairlead.errors import BusUnavailable
from fairlead.hub.hub import Hub
from fairlead.routing.failover.repeated_steps import RepeatedSteps
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import wait_for_redis
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

OTHERS: Final = 10.0
"""Seconds that a node waits for the others. One that is silent for longer is taken for dead, with what it knew."""
POLL: Final = 0.1
OUTAGE: Final = 30.0
UNLISTED: Final = 2.5
"""Seconds that a server has which answers and has no slots of the Cluster: the table of slots is read once in half a
second while a primary is away."""


class Comparison:
    def __init__(
        self, owner: str, fleet: FleetStore, hub: Hub, membership: Membership, steps: RepeatedSteps, metrics: Metrics
    ) -> None:
        """`owner` names the server as `Store.owner` does."""
        self._owner = owner
        self._store = fleet.store
        self._server = fleet.serving_server
        self._gate = fleet.gate
        self._hub = hub
        self._membership = membership
        self._steps = steps
        self._metrics = metrics
        self.known = ""
        """The id of the server with which this node has compared what it knows; "" before the first."""
        self.wanted = False
        """Whether this node is to compare."""
        self.running = False
        self._noticed = ""
        """The id that has been counted as another server: comparing with it may take several attempts."""
        self._noted = ("", "")
        """What this node has last seen noted: the tag, and the id."""
        self._others: set[str] = set()
        """The nodes that were alive when the gate closed, whose word is waited for."""

    def close(self) -> None:
        """A connection to the server is new: the server behind it may be another one."""
        if not self._gate.is_closed(self._owner):
            self._others.clear()
        self._others |= self._membership.lately_living()
        self._gate.close(self._owner, self._membership.now())
        self.wanted = True

    def check_note(self) -> None:
        """Compare if what is noted about the server may be elsewhere now, because slots have moved."""
        try:
            moved = (self._store.tag_of(self._owner), self.known) != self._noted
        except BusUnavailable:
            return  # it has no slots any more
        if self.known and moved:
            self.wanted = True

    async def run(self) -> None:
        """Compare until nothing more is wanted."""
        clock = asyncio.get_running_loop().time
        until, listed = clock() + UNLISTED, False
        self.running = True
        try:
            while self.wanted:
                self.wanted = False
                try:
                    await self._compare()
                except BusUnavailable as e:
                    logger.debug("comparing with Redis is repeated: %s", e)
                    owners = self._store.owners()
                    listed = listed or self._owner in owners
                    if self._is_gone(owners.get(self._owner), listed or clock() > until):
                        self._gate.open(self._owner)
                        continue
                    self.wanted = True
                    await wait_for_redis(self._store, OUTAGE)
                except Exception:
                    # The gate must not stay closed for a defect: what waits would wait for ever.
                    logger.exception("comparing what this node knows with Redis failed")
                    self._gate.open(self._owner)
        finally:
            self.running = False

    def _is_gone(self, answers: bool | None, for_long: bool) -> bool:
        """Whether there is nothing to compare with now, while other servers answer: only the agents of this one may
        feel it. It is a new connection once it is back, and then all is compared."""
        return for_long if answers is None else not answers and self._store.available

    async def _compare(self) -> None:
        owner, server = self._owner, await self._server.read(self._owner)
        if server == self.known:
            await self._note(server)
            self._settle(server)
            return
        await self._store.look_at_servers()  # so that all that this server has is known to be its own
        compared = await self._server.compared(owner)
        if server != self._noticed and await self._has_taken_over(server, compared):
            self._noticed = server
            self._metrics.failovers.inc()
            logger.warning(
                "another Redis server has taken over%s, or it was restarted: saying again what this node knows",
                f" at {owner}" if owner else "",
            )
        counts = await self._steps.repeat(self._hub, owner)
        await self._server.node_compared(owner, server, self._membership.node)
        self._gate.said(owner)
        if counts:
            logger.warning("Redis had lost its last moment: %s", counts)
        # Where nothing is noted, nobody has told anything; where this server is, the others have said what they know.
        if compared != server and (compared or counts or not self._steps.nothing_known(self._hub)):
            await self._wait_for_others(server)
        if await self._server.read(owner) == server and not self.wanted:
            await self._note(server)
            self._settle(server)
        else:
            self.wanted = True

    async def _has_taken_over(self, server: str, compared: str) -> bool:
        """Whether the server is in the place of another one that this node has told something. A primary of a Cluster
        that has got slots from another one, which is still there, is not."""
        if self.known:
            return True
        if compared in ("", server) or self._steps.nothing_known(self._hub):
            return False
        return compared not in {found.id for found in (await self._server.read_all()).values()}

    async def _note(self, server: str) -> None:
        tag = self._store.tag_of(self._owner)
        if (tag, server) == self._noted:
            return
        if await self._server.compared(self._owner) != server:
            await self._server.node_compared(self._owner, server, self._membership.node)
            await self._server.note_compared(self._owner, server)
        self._noted = (tag, server)

    def _settle(self, server: str) -> None:
        self.known = server
        if not self.wanted:
            self._gate.open(self._owner)

    async def _wait_for_others(self, server: str) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + OTHERS
        missing: Iterable[str] = {*self._others, self._membership.node}
        while missing := await self._server.missing(self._owner, server, missing):
            if clock() > until:
                logger.warning("the nodes %s have not said what they know: taken for dead", ", ".join(sorted(missing)))
                return
            await asyncio.sleep(POLL)
