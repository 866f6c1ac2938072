"""The offers that this node has taken: each command that a doorbell brought is sent to its agent, or given back, once.

`CommandDelivery` asks before it sends, and gives back what it cannot send. A doorbell may arrive twice: the second one
must not have a command sent again whose record would no longer allow it. An offer is valid for two seconds, so only the
last seconds have to be remembered.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead.bus.doorbell import CommandOffered, CommandQueued
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import wait_for_redis

KEPT: Final = 10.0
"""Seconds for which a command is remembered at least, and twice that at most: several times as long as an offer is
valid, by another clock."""
OUTAGE: Final = 30.0
"""Seconds to wait for Redis with an offer to give back. Afterwards the command sweeper finds the command."""


class TakenOffers:
    def __init__(self, fleet: FleetStore, inbox: Inbox, membership: Membership, tasks: BackgroundTasks) -> None:
        self._store = fleet.store
        self._records = fleet.records
        self._inbox = inbox
        self.membership = membership
        self._tasks = tasks
        self._taken: set[str] = set()
        """What was taken in the last KEPT seconds. Forgetting command by command, the oldest of a dict first, would
        walk over the places of all that were forgotten before it: 47 µs for each at 3,000 a second."""
        self._before: set[str] = set()
        """What was taken in the KEPT seconds before them."""
        self._since = 0.0
        """When `_taken` began, by the event loop's time."""

    def valid(self, offer: CommandOffered) -> bool:
        """Whether the command may be sent without asking. Others may rely on the contrary some time after that."""
        return self.membership.alive and self.membership.now() <= offer.until

    def take(self, command: str) -> bool:
        """Remember that this node handles `command`. Returns False if it did so before."""
        now = asyncio.get_running_loop().time()
        if now - self._since > KEPT:
            self._before = self._taken if now - self._since <= 2 * KEPT else set()
            self._taken, self._since = set(), now
        if command in self._taken or command in self._before:
            return False
        self._taken.add(command)
        return True

    def give_back(self, agent: str, command: str, gen: int) -> None:
        """Have a command queued again that was offered to the link of generation `gen`, was not sent there and will not
        be; and ring the node that has the agent now."""
        self._tasks.spawn(self._end(agent, command, gen, written=False))

    def note_sent(self, agent: str, command: str, gen: int) -> None:
        """Have a command count as sent like any other that was offered to the link of generation `gen`, and sent there;
        and ring the node that has the agent now."""
        self._tasks.spawn(self._end(agent, command, gen, written=True))

    async def _end(self, agent: str, command: str, gen: int, *, written: bool) -> None:
        while True:
            try:
                lease = await self._records.end_offer(command, agent, gen, written=written)
                break
            except BusUnavailable:
                if not await wait_for_redis(self._store, OUTAGE):
                    return
        if lease:
            self._inbox.ring(lease, (CommandQueued(agent, command),))
