"""Directs new links during a rollout: tells the nodes through Redis that only those of the new revision take them.

Each reconciler has one and calls it in every pass. `autoscaler.rollout` decides; the director writes the decision, with
a time at which it expires, and reports it. A problem with it never stops a pass: the nodes of all revisions then take
new links, as in any other Deployment.
"""

from __future__ import annotations

import logging

from fairlead.errors import BusUnavailable
from fairlead.fleet.directives.preferred_revision import PreferredRevision
from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.gateway_status import DecisionInputs
from fairlead_operator.autoscaler.observation import FleetObservation, NodeMetrics
from fairlead_operator.autoscaler.rollout import LinkDirection, RolloutHistory, direct_links
from fairlead_operator.autoscaler.rollout_step import is_paced
from fairlead_operator.inputs.fleet_redis import FleetRedis
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.workload_status import current_revision
from fairlead_operator.metrics import GatewayMetrics
from fairlead_operator.resources.owner import Owner
from fairlead_operator.runtime.reports.pass_report import PassReport

logger = logging.getLogger(__name__)

VALID_MS = 30_000
"""For how long a direction is valid: three passes, so that a late pass does no harm, and all nodes take new links again
half a minute after the operator has ended."""


class LinkDirector:
    def __init__(self, cluster: Cluster, owner: Owner, redis: FleetRedis, metrics: GatewayMetrics) -> None:
        self._cluster = cluster
        self._owner = owner
        self._redis = redis
        self._metrics = metrics
        self.history = RolloutHistory()
        """The history of the rollout after the last pass."""
        self._directed_to = ""
        """The revision that was last written; "" if it was withdrawn."""
        self._limited = False
        """Whether some pods of that revision leave new links to others of it."""

    async def current_revision(self, deployment: Object, conditions: Conditions) -> str:
        """The revision of the Deployment's template, "" while it is not known; sets ReplicaSetsReadable."""
        try:
            found = await self._cluster.items("ReplicaSet", self._owner.namespace, self._owner.label_selector)
        except AccessDenied as e:
            message = f"a rollout cannot direct new links to its pods: {e.message}"
            conditions.set("ReplicaSetsReadable", False, "AccessDenied", message)
            return ""
        conditions.set("ReplicaSetsReadable", True, "Readable")
        return current_revision(deployment, found)

    async def direct(
        self,
        fleet: FleetObservation,
        inputs: DecisionInputs,
        nodes: NodeMetrics | None,
        spec: LinkGatewaySpec,
        report: PassReport,
        now: float,
    ) -> LinkDirection:
        """Writes where new links go, and returns it. `fleet` is the observation made with `nodes`, and `inputs` are
        those of this pass's decision.
        """
        self.history = self.history.observe(fleet, now)
        direction = direct_links(fleet, inputs, self.history, spec, now, paced=is_paced(fleet, spec))
        if nodes is None or (fleet.rollout and not fleet.revision):
            return direction  # the links are unknown: what was written stays valid until it expires
        if direction.revision or self._directed_to:
            try:
                await self._write(direction, nodes.now)
            except BusUnavailable as e:
                logger.warning("%s/%s: %s", self._owner.namespace, self._owner.name, e.message)
                direction = LinkDirection("", "Redis cannot be written")
            self._report(direction, fleet, report)
            self._directed_to = direction.revision
        self.history = self.history.direct(direction, now)
        self._metrics.links_directed(bool(self._directed_to))
        return direction

    async def _write(self, direction: LinkDirection, now: int) -> None:
        """`now`: Redis TIME in ms."""
        until = now + VALID_MS if direction.revision else 0
        if direction.targets or self._limited:
            await self._redis.write_rebalance(direction.targets)
            self._limited = bool(direction.targets)
        await self._redis.prefer(PreferredRevision(direction.revision or self._directed_to, until))

    def _report(self, direction: LinkDirection, fleet: FleetObservation, report: PassReport) -> None:
        if direction.revision and direction.revision != self._directed_to:
            report.add_event("NewLinksDirected", direction.reason)
        elif not direction.revision and fleet.rollout:
            report.add_event(
                "NewLinksUndirected", f"pods of all revisions take new links: {direction.reason}", warning=True
            )
