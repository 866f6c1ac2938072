"""Looks after one LinkGateway: children, look, operations, decision, scale, status; a pass every ten seconds.

Made by the watch for each LinkGateway while this replica leads, and forgotten when it does not: what a reconciler
remembers is then no longer true. A pass never raises for what is wrong with the resource, its Redis or this
operator's rights; it says so in a condition and does what can be done without.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from fairlead.errors import ConfigError, FairleadError
from fairlead_operator.api.conditions import Conditions, patch_of
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode
from fairlead_operator.api.gateway_status import LinkGatewayStatus, read_status
from fairlead_operator.api.policy import Policy, secrets_to_read, violations
from fairlead_operator.api.validation import read
from fairlead_operator.autoscaler.decision import Action, Decision, decide
from fairlead_operator.autoscaler.history import FleetObservation, History, deletion_costs
from fairlead_operator.autoscaler.observation import observe_fleet
from fairlead_operator.inputs.fleet_redis import FleetRedis
from fairlead_operator.inputs.secrets import SecretReader
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied, ApiServerUnavailable, Conflict, NotFound, NotLeader
from fairlead_operator.kube.events import event, timestamp
from fairlead_operator.kube.objects import Object
from fairlead_operator.metrics import Metrics
from fairlead_operator.operations.runner import OperationRunner
from fairlead_operator.resources.owner import Owner
from fairlead_operator.runtime.drift import DriftRepair, check_owned, failure_of
from fairlead_operator.runtime.scaler import remove_one, scale, who_went, write_costs
from fairlead_operator.runtime.status import (
    LinkCount,
    acts,
    changed,
    judge,
    phase,
    pods_condition,
    report,
    scaling_condition,
    skew,
)

logger = logging.getLogger(__name__)

SEEN_WITHIN = 60.0
"""Seconds: a pod that went later than that after a removal was decided did not go for it."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A pod that should be the next to go, and who was there when that was decided."""

    at: float
    victim: str
    pods: frozenset[str]


class Reconciler:
    def __init__(self, cluster: Cluster, owner: Owner, policy: Policy, metrics: Metrics) -> None:
        self._cluster = cluster
        self._owner = owner
        self._policy = policy
        self._metrics = metrics.of(owner.namespace, owner.name)
        self._drift = DriftRepair(cluster)
        self._secrets = SecretReader(cluster, owner.namespace, owner.uid)
        self._sources = FleetRedis(cluster)
        self._operations = OperationRunner(cluster, metrics)
        self._state = History()
        self._ready_since: dict[str, float] = {}
        self._starting_since: dict[str, float] = {}
        self._links = LinkCount()
        self._removal: Removal | None = None
        self._events: list[Object] = []

    async def aclose(self) -> None:
        await self._sources.aclose()

    async def reconcile(
        self, body: Object, others: Sequence[Object], now: float, operations: Sequence[Object] = ()
    ) -> None:
        """One pass over `body` and its operations, read just before. Raises only NotLeader and ApiServerUnavailable."""
        before = read_status(body)
        wall = timestamp()
        conditions = Conditions(before.conditions, int(body["metadata"].get("generation", 0)), wall)
        self._events = []
        try:
            status = await self._pass(body, others, operations, before, conditions, now, wall)
        except (NotLeader, ApiServerUnavailable):
            raise
        except FairleadError as e:
            if not conditions.failed("Reconciled"):  # else that is the cause, and this what follows
                conditions.set("Reconciled", False, failure_of(e).reason, e.message)
            conditions.set("Ready", False, "NotReconciled", e.message)
            status = msgspec.structs.replace(before, phase="Degraded")
        await self._tell(before, status, conditions, int(body["metadata"].get("generation", 0)), wall)

    async def _pass(
        self,
        body: Object,
        others: Sequence[Object],
        operations: Sequence[Object],
        before: LinkGatewayStatus,
        conditions: Conditions,
        now: float,
        wall: str,
    ) -> LinkGatewayStatus:
        try:
            spec = read(body["spec"])
        except ConfigError as e:
            return await self._not_accepted(before, conditions, operations, "SpecInvalid", e.message)
        if older := _holder_of_redis(body, others):
            text = f"this Redis belongs to the LinkGateway {older} of this namespace: give each its own"
            return await self._not_accepted(before, conditions, operations, "RedisTaken", text)
        secrets = await self._secrets.read(secrets_to_read(spec, self._policy))
        if refused := violations(spec, self._policy, secrets.states()):
            return await self._not_accepted(before, conditions, operations, "PolicyViolation", "; ".join(refused))
        conditions.set("Accepted", True, "Valid")
        secrets.judge(spec, conditions)
        await self._keep(spec, self._secrets.checksum(spec, secrets), conditions, now, wall)
        await self._sources.ingress_class(spec, conditions)
        rows = await self._sources.rows(spec, secrets, conditions)
        owner = self._owner
        deployment = await self._cluster.get("Deployment", owner.namespace, owner.name)
        check_owned(deployment, owner)
        selector = ",".join(f"{key}={value}" for key, value in owner.selector.items())
        pods = await self._cluster.items("Pod", owner.namespace, selector)
        load = observe_fleet(deployment, pods, rows, self._ready_since, now)
        self._check_removal(load, now, wall)
        under_way = await self._operations.run(owner, spec, operations, deployment, pods, load)
        if under_way:
            load = replace(load, operation=under_way)
            self._removal = None  # from now on another one may be seen to go
        decision = decide(load, self._state, spec, now)
        removed_at, self._state = self._state.removed_at, decision.state
        wanted = decision.replicas if acts(spec) else load.replicas
        self._metrics.saw(decision, load, wanted)
        scaling_condition(conditions, decision, spec)
        acted = await self._act(decision, load, pods, spec, conditions, now, wall)
        if not acted:
            self._state = replace(self._state, removed_at=removed_at)
        judge(conditions, decision, load, deployment, spec)
        pods_condition(conditions, deployment, pods, self._starting_since, now)
        inputs = decision.inputs
        links = self._links.shown(inputs.live, moving=load.rollout or inputs.leaving > 0, now=now)
        return LinkGatewayStatus(
            phase=phase(conditions, decision, wanted, deployment),
            selector=selector,
            replicas=load.replicas,
            ready_replicas=inputs.ready,
            desired_replicas=decision.replicas,
            links=links,
            utilisation_percent=round(100 * links / (inputs.ready * inputs.capacity)) if inputs.ready else 0,
            skew=skew(load),
            last_scale_time=wall if acted else before.last_scale_time,
            decision=report(decision, spec, wall),
        )

    async def _keep(self, spec: LinkGatewaySpec, checksum: str, conditions: Conditions, now: float, wall: str) -> None:
        failures = await self._drift.run(self._owner, spec, now, checksum)
        for words in self._drift.repaired:
            logger.warning("%s/%s: %s", self._owner.namespace, self._owner.name, words)
            self._events.append(event(self._owner.involved, "Warning", "Repaired", words, wall))
        if failures:
            conditions.set("Reconciled", False, failures[0].reason, "; ".join(one.message for one in failures))
        else:
            conditions.set("Reconciled", True, "Applied")

    async def _not_accepted(
        self,
        before: LinkGatewayStatus,
        conditions: Conditions,
        operations: Sequence[Object],
        reason: str,
        message: str,
    ) -> LinkGatewayStatus:
        """The numbers stay: what serves goes on serving."""
        conditions.set("Accepted", False, reason, message)
        conditions.set("Ready", False, "NotAccepted", message)
        words = f"the LinkGateway {self._owner.name} is not accepted: {message}"
        await self._operations.refuse(operations, "GatewayNotAccepted", words)
        return msgspec.structs.replace(before, phase="Invalid")

    # -- acting ----------------------------------------------------------------------------------------

    async def _act(
        self,
        decision: Decision,
        load: FleetObservation,
        pods: Sequence[Object],
        spec: LinkGatewaySpec,
        conditions: Conditions,
        now: float,
        wall: str,
    ) -> bool:
        """Whether the scale was written."""
        owner = self._owner
        if not acts(spec):
            return False
        try:
            if decision.action is Action.UP:
                await scale(self._cluster, owner.namespace, owner.name, load.replicas, decision.replicas)
            elif decision.action is Action.DOWN:
                there = frozenset(pod.name for pod in load.pods if not pod.leaving)
                self._removal = Removal(now, decision.victim, there)
                dear = deletion_costs(load, decision.victim)
                await remove_one(self._cluster, owner.namespace, owner.name, pods, dear, load.replicas)
            else:
                if spec.scaling.mode is Mode.EXTERNAL and load.readable:
                    await write_costs(self._cluster, owner.namespace, pods, deletion_costs(load), near=True)
                return False
        except (Conflict, NotFound) as e:
            logger.info("%s/%s: %s", owner.namespace, owner.name, e.message)
            self._removal = None
            return False
        except AccessDenied as e:
            self._removal = None
            conditions.set("ScalingActive", False, "RightMissing", e.message)
            return False
        words = f"{load.replicas} → {decision.replicas}: {decision.reason}"
        if decision.victim:
            words += f"; {decision.victim} goes, the cheapest"
        logger.info("%s/%s: %s", owner.namespace, owner.name, words)
        reason = "ScaledUp" if decision.action is Action.UP else "ScaledDown"
        self._events.append(event(owner.involved, "Normal", reason, words, wall))
        self._metrics.acted(decision)
        return True

    def _check_removal(self, load: FleetObservation, now: float, wall: str) -> None:
        """Once somebody went: was it the pod that was meant?"""
        if self._removal is not None and now - self._removal.at > SEEN_WITHIN:
            self._removal = None  # the scale was not written after all, or nobody went for it
        if self._removal is None:
            return
        went = who_went(self._removal.pods, load)
        if not went:
            return
        if self._removal.victim not in went:
            words = f"{self._removal.victim} was to go, {', '.join(sorted(went))} went"
            logger.warning("%s/%s: %s", self._owner.namespace, self._owner.name, words)
            self._events.append(event(self._owner.involved, "Warning", "WrongPodRemoved", words, wall))
            self._metrics.wrong_removals.inc()
        self._removal = None

    # -- telling ---------------------------------------------------------------------------------------

    async def _tell(
        self,
        before: LinkGatewayStatus,
        status: LinkGatewayStatus,
        conditions: Conditions,
        generation: int,
        wall: str,
    ) -> None:
        owner = self._owner
        told = LinkGatewayStatus(
            **{name: getattr(status, name) for name in status.__struct_fields__}
            | {"observed_generation": generation, "conditions": conditions.all()}
        )
        for one in conditions.fallen():
            logger.warning("%s/%s: %s: %s %s", owner.namespace, owner.name, one.type, one.reason, one.message)
            self._events.append(event(owner.involved, "Warning", one.reason, f"{one.type}: {one.message}", wall))
        self._metrics.conditions(told.conditions)
        try:
            if changed(before, told):
                patch = dict(patch_of(told))
                await self._cluster.patch("LinkGateway", owner.namespace, owner.name, patch, "status")
            for told_event in self._events:
                await self._cluster.create(told_event)
        except (NotFound, Conflict):
            pass  # deleted meanwhile
        except AccessDenied as e:
            logger.warning("%s/%s: %s", owner.namespace, owner.name, e.message)


def _holder_of_redis(body: Object, others: Sequence[Object]) -> str:
    """The older LinkGateway of the same Redis, if there is one: two fleets in one would serve each other's agents."""

    def age(one: Object) -> tuple[str, str]:
        return one["metadata"].get("creationTimestamp", ""), one["metadata"]["uid"]

    redis = body["spec"].get("redis")
    older = [one for one in others if age(one) < age(body) and one["spec"].get("redis") == redis]
    return str(min(older, key=age)["metadata"]["name"]) if older else ""
