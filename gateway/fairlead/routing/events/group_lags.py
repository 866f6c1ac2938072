"""Looks how far groups of readers are behind, for the metrics: one node of the fleet does it for all.

A group may have no reader on any node, and then its lag is what matters most. So the number does not come from readers.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Mapping
from typing import Final

from fairlead.errors import BusUnavailable
from fairlead.fleet.events.event_groups import EventGroups, GroupStatus, shown_group
from fairlead.fleet.node_table import choose
from fairlead.routing.membership.membership import Membership
from fairlead.routing.tenant_limits import TenantLimits
from fairlead.store.errors import StoreError
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

PERIOD: Final = 10.0
"""Seconds between two looks: alerts look at minutes."""
SHOWN: Final = 100
"""Groups in the metrics: those with the greatest lag."""


class GroupLags:
    def __init__(self, groups: EventGroups, tenants: TenantLimits, membership: Membership, metrics: Metrics) -> None:
        self._groups = groups
        self._tenants = tenants
        self._membership = membership
        self._found: dict[str, GroupStatus] = {}
        metrics.add_varying_gauge(
            "fairlead_event_group_lag", "Events that a group of readers has not read yet", "group",
            lambda: self._shown("lag"),
        )  # fmt: skip
        metrics.add_varying_gauge(
            "fairlead_event_group_pending", "Events that readers of a group have not acknowledged yet", "group",
            lambda: self._shown("pending"),
        )  # fmt: skip

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                await self._look()
            except (BusUnavailable, StoreError) as e:
                logger.debug("looking at groups of readers: %s", e)
            await asyncio.sleep(PERIOD * random.uniform(0.8, 1.0))

    async def _look(self) -> None:
        membership = self._membership
        if not membership.alive or membership.lease not in choose("event groups", membership.living()):
            self._found = {}
            return
        found: dict[str, GroupStatus] = {}
        for tenant in dict.fromkeys(("", *self._tenants.declared())):
            for one in await self._groups.list(tenant):
                found[shown_group(tenant, one.name)] = one
        self._found = dict(heapq.nlargest(SHOWN, found.items(), key=lambda item: item[1].lag))

    def _shown(self, what: str) -> Mapping[str, float]:
        return {name: float(getattr(one, what)) for name, one in self._found.items()}
