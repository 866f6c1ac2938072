"""Runs the canary of a new pod template: holds the Deployment at a few new pods, and accepts or withholds the template.

Each reconciler has one. `stage` changes what a pass applies, and `observe` judges what the pass has seen, by the
decisions of `autoscaler.canary`. The pods of a canary are the first ones of the Deployment's rollout, so agents on them
stay there when it succeeds. A problem never lets an unchecked template through: if the accepted template is unknown,
the Deployment is not applied.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import structs

from fairlead.errors import BusUnavailable, FairleadError
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.gateway_status import CanaryMeasurement, CanaryReport
from fairlead_operator.autoscaler.canary.canary_analysis import (
    CanaryState,
    CanaryVerdict,
    canary_size,
    canary_targets,
    judge_canary,
)
from fairlead_operator.autoscaler.canary.canary_history import CanaryHistory, canary_pods
from fairlead_operator.autoscaler.canary.rollout_stage import RolloutStage, is_promoted, next_stage
from fairlead_operator.autoscaler.observation import FleetObservation
from fairlead_operator.inputs.fleet_redis import FleetRedis
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import NotLeader
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.workload_status import pod_count, revision_of, why_not_running
from fairlead_operator.metrics import GatewayMetrics
from fairlead_operator.resources.deployment import TEMPLATE_ANNOTATION, hash_of, held, with_template
from fairlead_operator.resources.owner import Owner
from fairlead_operator.runtime.canary.accepted_template import AcceptedTemplate
from fairlead_operator.runtime.reports.pass_report import PassReport

logger = logging.getLogger(__name__)

CONDITION = "CanarySucceeded"

TemplateCheck: TypeAlias = Callable[[Object, Object, LinkGatewaySpec], Awaitable[None]]
"""Raises PolicyViolation unless the pods may get the first template. The second one is the template of the spec."""


@dataclass(frozen=True, slots=True)
class CanaryPass:
    """What one pass has seen that concerns a canary."""

    fleet: FleetObservation
    deployment: Object
    pods: Sequence[Object]
    spec: LinkGatewaySpec
    report: PassReport
    now: float
    """A clock in seconds that only goes forward."""


class CanaryExecutor:
    def __init__(
        self, cluster: Cluster, owner: Owner, redis: FleetRedis, metrics: GatewayMetrics, check: TemplateCheck
    ) -> None:
        """`check` is asked before the accepted template is applied again."""
        self._cluster = cluster
        self._owner = owner
        self._check = check
        self._redis = redis
        self._metrics = metrics
        self._accepted = AcceptedTemplate(cluster, owner)
        self._template: Object = {}
        """The template for which the spec of this pass asks."""
        self._stage = RolloutStage.NORMAL
        self._history = CanaryHistory()
        self._promoting_since: float | None = None
        self._replicas: int | None = None
        """Pods that the Deployment asked for in the last pass; None before the first one."""
        self._moving = False
        """Whether targets are written."""
        self._warned = ""

    async def stage(self, wanted: Sequence[Object], spec: LinkGatewaySpec, report: PassReport) -> list[Object]:
        """`wanted`, the objects that a pass applies, with the Deployment as the stage of its template asks for.

        Raises AccessDenied when the accepted template cannot be read or written and a canary is asked for, and
        PolicyViolation when the pods must not get it again.
        """
        (deployment,) = (one for one in wanted if one["kind"] == "Deployment")
        self._template, canary = deployment["spec"]["template"], spec.rollout.canary
        try:
            await self._accepted.read()
            new, accepted = hash_of(self._template), self._accepted.hash
            self._stage = next_stage(new, accepted, report.before.canary, canary)
            if self._stage is RolloutStage.NORMAL and new != accepted:
                await self._accepted.accept(self._template)
            if self._stage is RolloutStage.CANARY and self._replicas is None:
                self._replicas = await self._present_replicas()
            if self._stage is RolloutStage.WITHHELD and self._accepted.template is not None:
                await self._check(self._accepted.template, self._template, spec)
        except NotLeader:
            raise
        except FairleadError as e:
            if canary is not None:
                raise
            self._stage = RolloutStage.NORMAL
            self._warn(f"a later canary cannot return to the present template: {e.message}")
        return [self._staged(one, spec) if one is deployment else one for one in wanted]

    def _staged(self, deployment: Object, spec: LinkGatewaySpec) -> Object:
        canary, surge = spec.rollout.canary, spec.rolling_update.max_surge
        if self._stage is RolloutStage.CANARY and canary is not None:
            return held(deployment, canary_size(self._replicas or 0, spec))
        if self._stage is RolloutStage.PROMOTION and str(surge) not in ("0", "0%"):
            return held(deployment, surge)
        if self._stage is RolloutStage.WITHHELD and self._accepted.template is not None:
            return with_template(deployment, self._accepted.template)
        return deployment

    async def _present_replicas(self) -> int:
        """Pods that the Deployment asks for; 0 if there is none. So a canary of the last leader keeps its size."""
        found = await self._cluster.find("Deployment", self._owner.namespace, self._owner.name)
        return 0 if found is None else int(found["spec"].get("replicas", 0))

    def _warn(self, message: str) -> None:
        if message != self._warned:
            logger.warning("%s/%s: %s", self._owner.namespace, self._owner.name, message)
        self._warned = message

    @property
    def running(self) -> bool:
        """Whether the pods of the Deployment's revision are a canary in this pass."""
        return self._stage is RolloutStage.CANARY

    async def observe(self, seen: CanaryPass) -> CanaryReport | None:
        """Judges what this pass has seen, tells the nodes which links to move, and sets CanarySucceeded. Returns the
        canary's part of the status.
        """
        self._replicas, before = seen.fleet.replicas, seen.report.before.canary
        if before is not None and before.template != hash_of(self._template):
            before = None  # the spec now asks for another template
        after: CanaryReport | None
        if self._stage is RolloutStage.CANARY:
            after = await self._observe_canary(seen, before)
        else:
            after = self._observe_end(seen, before)
            self._history = CanaryHistory()
        serving = self._history.revision != "" and _runs(after)
        await self._move(canary_targets(seen.fleet, self._history, seen.spec) if serving else {})
        self._metrics.canary(running=_runs(after))
        if after is not None:
            state = {CanaryState.RUNNING: None, CanaryState.FAILED: False}.get(CanaryState(after.state), True)
            seen.report.conditions.set(CONDITION, state, after.reason, after.message)
        return after

    async def _observe_canary(self, seen: CanaryPass, before: CanaryReport | None) -> CanaryReport:
        fleet, report = seen.fleet, seen.report
        template = hash_of(self._template)
        if before is None or before.state != CanaryState.RUNNING:
            before = CanaryReport(state=CanaryState.RUNNING, template=template, started_at=report.timestamp)
            size = pod_count(canary_size(fleet.replicas, seen.spec))
            report.add_event("CanaryStarted", f"a new pod template is tried on {size}")
        applied = (seen.deployment["metadata"].get("annotations") or {}).get(TEMPLATE_ANNOTATION)
        if applied != template or not fleet.revision:
            return structs.replace(before, reason="Starting", message="the Deployment has not made its pods yet")
        self._history = self._history.observe(fleet, canary_size(fleet.replicas, seen.spec), seen.now)
        of_canary = [pod for pod in seen.pods if revision_of(pod) == fleet.revision]
        problem = why_not_running(seen.deployment, of_canary)
        verdict = judge_canary(fleet, self._history, seen.spec, problem[1] if problem else "")
        return await self._reported(verdict, seen, before)

    async def _reported(self, verdict: CanaryVerdict, seen: CanaryPass, before: CanaryReport) -> CanaryReport:
        serving, report = canary_pods(seen.fleet), seen.report
        after = structs.replace(
            before,
            state=verdict.state,
            reason=verdict.reason,
            message=verdict.message,
            pods=len(serving),
            links=sum(pod.links for pod in serving),
            watched_seconds=round(self._history.watched),
            measurements=[
                CanaryMeasurement(name=one.name, count=one.count, limit=one.limit, judged=one.judged, message=f"{one}")
                for one in verdict.measurements
            ],
        )
        if verdict.state is CanaryState.RUNNING:
            return after
        self._metrics.canary_ended(verdict.state)
        if verdict.state is CanaryState.FAILED:  # the condition becomes an Event
            message = f"{verdict.message}; the pods keep the accepted template until the spec asks for another one"
            return structs.replace(after, message=message, ended_at=report.timestamp)
        await self._accepted.accept(self._template)
        report.add_event("CanarySucceeded", f"the new pod template is accepted: {verdict.message}")
        self._promoting_since = None
        return structs.replace(after, state=CanaryState.PROMOTING, ended_at=report.timestamp)

    def _observe_end(self, seen: CanaryPass, before: CanaryReport | None) -> CanaryReport | None:
        """No canary runs; the last one may have ended a moment ago."""
        if before is None or self._stage is RolloutStage.WITHHELD:
            return before
        if before.state == CanaryState.PROMOTING:
            if self._promoting_since is None:
                self._promoting_since = seen.now
            promoting = seen.now - self._promoting_since
            if self._stage is RolloutStage.PROMOTION and not is_promoted(seen.fleet, seen.spec, promoting):
                return before
            return structs.replace(before, state=CanaryState.SUCCEEDED)
        return before if before.state == CanaryState.SUCCEEDED else None  # it was switched off

    async def _move(self, targets: Mapping[str, int]) -> None:
        if not targets and not self._moving:
            return
        try:
            await self._redis.write_rebalance({pod: RebalanceTarget(keep) for pod, keep in targets.items()})
        except BusUnavailable as e:
            self._warn(f"no links are moved to the canary: {e.message}")
        else:
            self._moving = bool(targets)


def _runs(report: CanaryReport | None) -> bool:
    return report is not None and report.state == CanaryState.RUNNING
