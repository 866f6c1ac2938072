"""Whether this node should get new links: what /readyz answers, and what the node's row says about it.

A node that cannot serve is unready for a reason of its own. One that can serve may be excluded from new links, because
the operator has told the nodes so (see `fleet.directives`). The node asks it for each probe, and `LoadReport` for each
heartbeat. It changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fairlead.bus.inbox import Inbox
from fairlead.fleet.directives.exclusion import SETTLE, Exclusion
from fairlead.fleet.directives.rebalance_target import EnoughLinks
from fairlead.hub.hub import Hub
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership


class Readiness:
    def __init__(self, hub: Hub, inbox: Inbox, membership: Membership, fleet: FleetStore) -> None:
        self._store = fleet.store
        self._memory = fleet.memory
        self._hub = hub
        self._inbox = inbox
        self._membership = membership
        self._enough = EnoughLinks()
        self._last: Exclusion | None = None
        """The last exclusion that was found."""
        self._found_at = float("-inf")
        """When it was found, by the monotonic clock."""
        self.problem = "not in the fleet yet"
        """Why this node cannot serve; "" if it can."""
        self.name_taken = ""
        """The process that has taken this node's name, in words; "" if none has."""
        self.on_exclusion: Callable[[], None] = lambda: None
        """Called when this node begins to leave new links to others."""

    def unready(self) -> str:
        """Why this node should get no new links; "" if it should."""
        if problem := self._problem():
            return problem
        exclusion = self.exclusion()
        return exclusion.reason if exclusion is not None else ""

    def redis_problem(self) -> str:
        """What is wrong with Redis, in words; "" if nothing is. A node is ready all the same: no other one would do
        better."""
        if self._membership.problem:
            return self._membership.problem
        away = [address for address, up in self._store.primaries().items() if not up]
        if away:
            return f"Redis at {', '.join(away)} does not answer: {self._store.last_error.message}"
        return self._store.unconfirmed or self._memory.disk.problem or self._memory.problem

    def exclusion(self) -> Exclusion | None:
        """Why this node leaves new links to others although it can serve; None if it takes them, or cannot serve."""
        found, now = self._find(), time.monotonic()
        if found is not None:
            begins = self.reported() is not found
            self._last, self._found_at = found, now
            if begins:
                self.on_exclusion()
        return found

    def reported(self) -> Exclusion | None:
        """The exclusion for the node's row. It stays there for SETTLE seconds after its end: the next probe finds this
        node ready, and until then the operator should know why it is not."""
        return self._last if time.monotonic() - self._found_at < SETTLE and not self._problem() else None

    def _find(self) -> Exclusion | None:
        membership, target = self._membership, self._membership.rebalance_target
        enough = self._enough.reached(self._hub.links, None if target is None else target.enough)
        if self._problem():
            return None
        if membership.superseded:
            return Exclusion.ROLLOUT
        return Exclusion.REBALANCE if enough else None

    def _problem(self) -> str:
        if self._hub.draining:
            return "draining"
        if self.problem or self.name_taken:
            return self.problem or self.name_taken
        return "the inbox receives nothing although Redis answers" if self._inbox.stalled else ""
