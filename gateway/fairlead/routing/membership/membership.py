"""What this node knows about the fleet: its own lease, the fleet's clock, the table of nodes and the data epoch.

`Heartbeat` updates it, and all of `routing` reads it. The fleet has one clock, Redis TIME: each heartbeat reads it and
this process's monotonic clock carries it on. The wall clocks of two machines are never compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fairlead.errors import BusUnavailable, CommandUnknown
from fairlead.fleet.data_epoch import DataEpoch
from fairlead.fleet.directives.preferred_revision import PreferredRevision
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.node_table import ALIVE_MS, AWAY_MS, NodeRow, NodeTable
from fairlead.routing.timeouts import VALID_MS

REBUILT_MS = 600_000
"""After this time a node that still compares its links with Redis does so for another reason than a loss of data."""


class Reconciliation:
    """Whether the links of this node may differ from their rows in Redis, so that the reconciler must compare them."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._running = False

    def request(self) -> None:
        """Have all links compared soon, because something may have made links and rows differ."""
        self._requested.set()

    @property
    def pending(self) -> bool:
        """True while a comparison is requested or runs."""
        return self._running or self._requested.is_set()

    async def begin(self, timeout: float) -> None:
        """Wait until a comparison is requested, or for `timeout` seconds. The caller then compares and calls `end`."""
        try:
            async with asyncio.timeout(timeout):
                await self._requested.wait()
        except TimeoutError:
            pass
        self._requested.clear()
        self._running = True

    def end(self) -> None:
        self._running = False


class Membership:
    def __init__(self, node: str, epoch: str = "", revision: str = "") -> None:
        """`node` is the node's name, and `epoch` a random id of this process's membership, replaced if its row is lost.
        `revision` distinguishes nodes of one rollout from those of another; "" if nothing does."""
        self.node = node
        self.epoch = epoch
        self._revision = revision
        self._preferred_revision = PreferredRevision()
        self._was_superseded = False
        self.on_directive: Callable[[str, str], None] = lambda _what, _detail: None
        """Told what of the operator's directives begins or ceases to hold for this node; set by the node."""
        self._rebalance_target: RebalanceTarget | None = None
        self._target_since = float("inf")
        self.table = NodeTable({})
        self.data_epoch: DataEpoch | None = None
        self.alive_since = 0
        """When this node joined, or was last answered again after a time in which others took it for dead (ms)."""
        self.reconciliation = Reconciliation()
        self.problem = ""
        """Why the last heartbeat failed; "" if it did not."""
        self._offset = 0.0
        self._answered_at = float("-inf")

    @property
    def lease(self) -> str:
        """`node#epoch`: how Redis names the owner of an agent."""
        return f"{self.node}#{self.epoch}"

    def heartbeat_answered(self, redis_now: int) -> bool:
        """Record that a heartbeat was answered with the time `redis_now` (ms). Returns True if that came so late that
        other nodes took this one for dead."""
        late = not self.alive
        if late:
            self.alive_since = redis_now
        self.problem = ""
        self._answered_at = time.monotonic()
        self._offset = redis_now - self._answered_at * 1000
        return late

    def now(self) -> int:
        """Redis TIME in ms, as far as this node knows it."""
        return int(time.monotonic() * 1000 + self._offset)

    def valid_until(self) -> int:
        """The time (ms) until which a claim or dispatch that is sent now may be executed."""
        return self.now() + VALID_MS

    def living(self, can: Callable[[NodeRow], bool] = lambda _: True) -> list[str]:
        """The leases of all live nodes that can do something, including this one's."""
        now, own = self.now(), self.lease
        return [own, *(row.lease for row in self.table.rows() if row.lease != own and row.alive(now) and can(row))]

    def lately_living(self) -> set[str]:
        """The nodes that were alive when this one's last heartbeat was answered, which may be long ago."""
        then = int(self._answered_at * 1000 + self._offset) if self._answered_at > 0 else 0
        return {self.node, *(row.node for row in self.table.rows() if row.alive(then))}

    @property
    def since_heartbeat(self) -> float:
        """Seconds since the last answered heartbeat; infinite before the first."""
        return time.monotonic() - self._answered_at

    @property
    def alive(self) -> bool:
        """Whether other nodes consider this one alive. If not, it must not claim, dispatch or deliver anything."""
        return self.since_heartbeat * 1000 <= ALIVE_MS

    def check_alive(self, consequence: str) -> None:
        """Raises BusUnavailable if other nodes consider this one dead; `consequence` is what it therefore does not
        do."""
        if not self.alive:
            why = f" ({self.problem})" if self.problem else ""
            raise BusUnavailable(f"this node has had no heartbeat for too long{why}: {consequence}")

    @property
    def superseded(self) -> bool:
        """True while the nodes of another revision take all new links."""
        return self._preferred_revision.excludes(self._revision, self.now())

    @property
    def rebalance_target(self) -> RebalanceTarget | None:
        """What a rebalance asks of this node; None while no rebalance runs or heartbeats are not answered."""
        return self._rebalance_target if self.alive else None

    @property
    def target_age(self) -> float:
        """Seconds since a rebalance began to ask something of this node."""
        return time.monotonic() - self._target_since

    def set_directives(self, preferred: PreferredRevision, target: RebalanceTarget | None) -> None:
        """Record what the operator tells the nodes, as this one has just read it."""
        before = self._preferred_revision
        self._preferred_revision = preferred
        if (superseded := self.superseded) != self._was_superseded:
            self._was_superseded = superseded
            if superseded:
                self.on_directive("rollout begins", f"nodes of the revision {preferred.name} take all new links")
            else:
                self.on_directive("rollout ends", f"the revision {before.name} is not preferred any more")
        if target is not None and self._rebalance_target is None:
            self.on_directive("rebalance begins", f"keep {target.keep} links and move the others")
        elif target is None and self._rebalance_target is not None:
            self.on_directive("rebalance ends", "")
        if target is None:
            self._target_since = float("inf")
        elif self._rebalance_target is None:
            self._target_since = time.monotonic()
        self._rebalance_target = target

    def unknown_command(self, command: str) -> CommandUnknown:
        """The error for a command that has no record."""
        lost = ", or Redis has lost it with its data" if self.data_epoch is not None and self.data_epoch.lost else ""
        return CommandUnknown(f"no command {command}: it was never posted, or its results have expired{lost}")

    @property
    def index_incomplete(self) -> bool:
        """True while linked agents may be missing in Redis, which has lost its data: some nodes may not have noticed
        yet, or report that they have not compared all their links."""
        if self.data_epoch is None or not self.data_epoch.lost:
            return False
        now = self.now()
        since = now - self.data_epoch.lost
        unfinished = any(row.doubtful and row.alive(now) for row in self.table.rows())
        return since <= ALIVE_MS or (since <= REBUILT_MS and unfinished)

    @property
    def rebuilding(self) -> bool:
        """True for a while after Redis has lost its data: agents that it does not know may be linked."""
        return self.data_epoch is not None and self.data_epoch.lost > 0 and self.now() - self.data_epoch.lost <= AWAY_MS
