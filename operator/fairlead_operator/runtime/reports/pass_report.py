"""What one pass over a LinkGateway reports: conditions and Events, collected and then written with the status.

Made by the reconciler for each pass. An unchanged status is not written again, except once a minute for the time of its
decision.
"""

from __future__ import annotations

import logging
from datetime import datetime

import msgspec

from fairlead_operator.api.conditions import Conditions, status_patch
from fairlead_operator.api.gateway_spec import KIND
from fairlead_operator.api.gateway_status import LinkGatewayStatus, read_gateway_status
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied, Conflict, NotFound
from fairlead_operator.kube.events import event, timestamp
from fairlead_operator.kube.objects import Object
from fairlead_operator.metrics import GatewayMetrics
from fairlead_operator.resources.owner import Owner

logger = logging.getLogger(__name__)

REWRITE_AFTER = 60.0
"""Seconds after which an unchanged status is written again: an old time then means that the operator is not running."""


class PassReport:
    def __init__(self, cluster: Cluster, owner: Owner, body: Object, metrics: GatewayMetrics) -> None:
        self._cluster = cluster
        self._owner = owner
        self._metrics = metrics
        self._generation = int(body["metadata"].get("generation", 0))
        self._events: list[Object] = []
        self.before = read_gateway_status(body)
        """The status that the last pass wrote."""
        self.timestamp = timestamp()
        """The wall clock's time when the pass began."""
        self.conditions = Conditions(self.before.conditions, self._generation, self.timestamp)

    def add_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Adds an Event and logs it."""
        level = logging.WARNING if warning else logging.INFO
        logger.log(level, "%s/%s: %s", self._owner.namespace, self._owner.name, message)
        self._add_event(reason, message, "Warning" if warning else "Normal")

    def _add_event(self, reason: str, message: str, severity: str) -> None:
        self._events.append(event(self._owner.involved, severity, reason, message, self.timestamp))

    async def write(self, status: LinkGatewayStatus) -> None:
        """Writes `status` with the conditions of this pass if it says anything new, and then the Events."""
        owner = self._owner
        after = msgspec.structs.replace(status, observed_generation=self._generation, conditions=self.conditions.all())
        for one in self.conditions.newly_false():
            logger.warning("%s/%s: %s: %s %s", owner.namespace, owner.name, one.type, one.reason, one.message)
            self._add_event(one.reason, f"{one.type}: {one.message}", "Warning")
        self._metrics.set_conditions(after.conditions)
        try:
            if says_more(self.before, after):
                await self._cluster.patch(KIND, owner.namespace, owner.name, dict(status_patch(after)), "status")
            for one_event in self._events:
                await self._cluster.create(one_event)
        except (NotFound, Conflict):
            pass  # the LinkGateway was deleted meanwhile
        except AccessDenied as e:
            logger.warning("%s/%s: %s", owner.namespace, owner.name, e.message)


def says_more(before: LinkGatewayStatus, after: LinkGatewayStatus) -> bool:
    """Whether `after` says anything new. The time of the decision alone counts only after REWRITE_AFTER."""
    if before.decision is not None and after.decision is not None:
        old, new = (datetime.fromisoformat(one.at) for one in (before.decision, after.decision))
        if (new - old).total_seconds() < REWRITE_AFTER:
            decision = msgspec.structs.replace(after.decision, at=before.decision.at)
            after = msgspec.structs.replace(after, decision=decision)
    return after != before
