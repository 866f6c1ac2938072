"""Lets a rollout go as far as the budget of moves allows: how many new pods the Deployment makes, and how many old ones
terminate.

Each reconciler has one. `stage` changes the Deployment that a pass applies, and `execute` plans the next step with
`autoscaler.rollout_step` and takes it. During a rollout in steps no new pod counts as available (`minReadySeconds` is a
year), so the Deployment terminates no old pod by itself. For each step, maxUnavailable is raised for a moment. All of
this is outside the pod template, and the progress is kept in the Deployment alone: if the operator dies, the rollout
pauses with all its pods serving, and the next leader continues it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.errors import FairleadError
from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.observation import FleetObservation
from fairlead_operator.autoscaler.rollout import LinkDirection, RolloutHistory
from fairlead_operator.autoscaler.rollout_step import NOT_PACED, RolloutStep, plan_step
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import NotLeader
from fairlead_operator.kube.objects import Object
from fairlead_operator.resources.deployment import HELD_SECONDS, TEMPLATE_ANNOTATION, held
from fairlead_operator.resources.owner import Owner

logger = logging.getLogger(__name__)

CONDITION = "RolloutWithinBudget"
LOOKS, LOOK_AGAIN = 8, 0.25
"""How often, and at which interval in seconds, the Deployment is checked until its old pods terminate. Its controllers
take milliseconds; a step that they have not taken by then is left to a later pass."""


@dataclass(frozen=True, slots=True)
class RolloutPass:
    """What one pass has seen that concerns a rollout."""

    fleet: FleetObservation
    deployment: Object
    direction: LinkDirection
    history: RolloutHistory
    rate: float
    """Moves per second that the budget allows."""
    now: float
    """A clock in seconds that only goes forward."""


class RolloutExecutor:
    def __init__(self, cluster: Cluster, owner: Owner) -> None:
        self._cluster = cluster
        self._owner = owner
        self._step: RolloutStep | None = None
        """What the last pass has planned; None before the first one."""
        self._rolling = False
        """Whether a rollout was in progress in the last pass."""
        self._template = ""
        """The hash of the Deployment's template in the last pass."""
        self._held = False
        """Whether the Deployment was applied so that it terminates no pod by itself."""

    async def stage(self, wanted: Sequence[Object]) -> list[Object]:
        """`wanted`, the objects that a pass applies, with the Deployment as the step of its rollout asks for."""
        (deployment,) = (one for one in wanted if one["kind"] == "Deployment")
        if self._step is None:
            self._step = await self._reached()
        begins = self._template not in ("", _template_of(deployment))
        self._held = self._step.paced and (self._rolling or begins)
        if not self._held:
            return list(wanted)
        return [held(one, self._step.ahead) if one is deployment else one for one in wanted]

    async def _reached(self) -> RolloutStep:
        """The step that the last leader reached. The links are unknown before the first pass, so a template that
        changes in it begins in steps.
        """
        found = await self._cluster.find("Deployment", self._owner.namespace, self._owner.name)
        if found is None:
            return NOT_PACED
        self._template = _template_of(found)
        ahead = (found["spec"]["strategy"].get("rollingUpdate") or {}).get("maxSurge")
        self._rolling = found["spec"].get("minReadySeconds") == HELD_SECONDS and isinstance(ahead, int)
        return RolloutStep(True, ahead if self._rolling and isinstance(ahead, int) else 1)

    async def execute(self, seen: RolloutPass, spec: LinkGatewaySpec, conditions: Conditions) -> RolloutStep:
        """Plans the next step and takes it; sets RolloutWithinBudget during a rollout."""
        fleet, before = seen.fleet, self._step or NOT_PACED
        step = plan_step(fleet, seen.direction, seen.history, spec, seen.rate, seen.now, before)
        if conditions.is_false("ReplicaSetsReadable"):
            step = NOT_PACED  # old and new pods cannot be distinguished
        self._step, self._template = step, _template_of(seen.deployment)
        # Until the Deployment's controller has seen a change, it is unknown whether the template has changed.
        self._rolling = fleet.rollout if fleet.revision else self._held
        if not fleet.rollout or not step.paced:
            return step
        if step.problem:
            conditions.set(CONDITION, False, "PodTooFull", step.problem)
        else:
            conditions.set(CONDITION, True, "WithinBudget", step.reason)
        if step.going and self._held:
            try:
                await self._let_go(step, fleet.replicas)
            except NotLeader:
                raise
            except FairleadError as e:  # the next pass takes the step
                logger.warning("%s/%s: no old pod terminates: %s", self._owner.namespace, self._owner.name, e.message)
        return step

    async def _let_go(self, step: RolloutStep, replicas: int) -> None:
        """Lets old pods terminate until only as many are left as `step` says.

        The limit is set only for a moment: if it stayed and somebody changed the template, the Deployment would at once
        terminate as many pods as have been replaced so far.
        """
        await self._allow(replicas - step.left)
        try:
            for _ in range(LOOKS):
                await asyncio.sleep(LOOK_AGAIN)
                found = await self._cluster.get("Deployment", self._owner.namespace, self._owner.name)
                status = found.get("status") or {}
                if int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0)) <= step.left:
                    return
        finally:
            await self._allow(0)

    async def _allow(self, missing: int) -> None:
        limit = {"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": missing}}}}
        await self._cluster.patch("Deployment", self._owner.namespace, self._owner.name, limit)


def _template_of(deployment: Object) -> str:
    return str((deployment["metadata"].get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""))
