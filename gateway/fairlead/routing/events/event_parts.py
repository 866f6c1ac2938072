"""All parts of the events of agents on their way to readers, joined. `Routing` creates one and runs its loops."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from fairlead.fleet.events.event_groups import EventGroups
from fairlead.routing.events.event_feed import EventFeeds
from fairlead.routing.events.group_lags import GroupLags
from fairlead.routing.events.group_reader import GroupReaders
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.followers import Followers
from fairlead.routing.membership.membership import Membership
from fairlead.telemetry.metrics import Metrics


class EventParts:
    def __init__(self, fleet: FleetStore, followers: Followers, membership: Membership, metrics: Metrics) -> None:
        groups = EventGroups(fleet.store)
        self.feeds = EventFeeds(fleet.store, fleet.events, followers)
        self.readers = GroupReaders(fleet.store, fleet.events, groups, followers, metrics.redelivered.inc)
        self._lags = GroupLags(groups, fleet.tenants, membership, metrics)

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        return self.feeds.run(), self._lags.run()
