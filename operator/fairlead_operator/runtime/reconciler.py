"""Reconciles one LinkGateway: applies its child objects, observes its fleet, runs its operations, decides the number of
pods, scales the Deployment, moves links to pods that have few, and writes the status.

The controller creates one for each LinkGateway while this replica leads, and drops it afterwards, because its state
would no longer be true. A pass never raises for a problem of the resource, of its Redis or of the operator's rights. It
reports the problem in a condition and does everything else that is still possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from fairlead.errors import FairleadError
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.gateway_status import LinkGatewayStatus
from fairlead_operator.api.policy import Policy
from fairlead_operator.autoscaler.decision import Decision, decide
from fairlead_operator.autoscaler.known_exclusions import KnownExclusions
from fairlead_operator.autoscaler.move_rate import fleet_move_rate
from fairlead_operator.autoscaler.observation import FleetObservation, NodeMetrics, observe_fleet
from fairlead_operator.autoscaler.rebalance import RebalancePlan, plan_rebalance
from fairlead_operator.autoscaler.rollout import LinkDirection
from fairlead_operator.inputs.fleet_redis import FleetRedis
from fairlead_operator.inputs.history_store import HistoryStore
from fairlead_operator.inputs.ingress_class import check_ingress_class
from fairlead_operator.inputs.installed_crds import InstalledCrds
from fairlead_operator.inputs.machines import MachineReader
from fairlead_operator.inputs.prometheus_query import PrometheusQuery
from fairlead_operator.inputs.secrets import SecretReader, Secrets
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import ApiServerUnavailable, NotLeader
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.workload_status import FirstSeen, RolloutWatch
from fairlead_operator.metrics import Metrics
from fairlead_operator.operations.runner import OperationRunner
from fairlead_operator.resources.children import children
from fairlead_operator.resources.owner import Owner
from fairlead_operator.runtime.acceptance import Acceptance, Rejection
from fairlead_operator.runtime.canary.canary_executor import CanaryExecutor, CanaryPass
from fairlead_operator.runtime.child_applier import ApplyFailure, ChildApplier, check_owned
from fairlead_operator.runtime.disconnect_executor import DisconnectExecutor
from fairlead_operator.runtime.link_director import LinkDirector
from fairlead_operator.runtime.rebalance_executor import RebalanceExecutor
from fairlead_operator.runtime.reports.pass_report import PassReport
from fairlead_operator.runtime.reports.removal_report import report_removal
from fairlead_operator.runtime.reports.status import (
    LinkCount,
    gateway_status,
    phase,
    rebalance_report,
    set_fleet_conditions,
    set_pods_condition,
    set_scaling_conditions,
    writes_scale,
)
from fairlead_operator.runtime.rollout_executor import RolloutExecutor, RolloutPass
from fairlead_operator.runtime.scale_executor import ScaleExecutor


@dataclass(frozen=True, slots=True)
class Workload:
    """The Deployment of a fleet, and its pods."""

    deployment: Object
    pods: list[Object]


class Reconciler:
    def __init__(self, cluster: Cluster, owner: Owner, policy: Policy, metrics: Metrics) -> None:
        self._cluster = cluster
        self._owner = owner
        self._metrics = metrics.of(owner.namespace, owner.name)
        self._crds = InstalledCrds(cluster)
        self._children = ChildApplier(cluster)
        self._secrets = SecretReader(cluster, owner.namespace, owner.uid)
        self._acceptance = Acceptance(self._secrets, policy)
        self._redis = FleetRedis()
        self._machines = MachineReader(cluster)
        self._prometheus = PrometheusQuery()
        self._operations = OperationRunner(cluster, metrics)
        self._executor = ScaleExecutor(cluster, owner, self._metrics)
        self._director = LinkDirector(cluster, owner, self._redis, self._metrics)
        self._rollout = RolloutExecutor(cluster, owner)
        self._rebalance = RebalanceExecutor(self._redis, self._metrics)
        self._disconnect = DisconnectExecutor(self._redis)
        self._canary = CanaryExecutor(cluster, owner, self._redis, self._metrics, self._acceptance.check_template)
        self._memory = HistoryStore(self._redis, owner)
        self._plan: RebalancePlan | None = None
        self._ready = FirstSeen()
        self._rollouts = RolloutWatch()
        self._exclusions = KnownExclusions()
        self._starting = FirstSeen()
        self._links = LinkCount()

    async def aclose(self) -> None:
        await self._redis.aclose()
        await self._prometheus.aclose()

    async def reconcile(
        self, body: Object, others: Sequence[Object], now: float, operations: Sequence[Object] = ()
    ) -> None:
        """One pass over `body` and its operations, read just before. Raises only NotLeader and ApiServerUnavailable.

        `others` are the other LinkGateways of the namespace; `now` is a clock in seconds that only goes forward.
        """
        report = PassReport(self._cluster, self._owner, body, self._metrics)
        await self._crds.check(report.conditions, now)
        try:
            accepted = await self._acceptance.check(body, others)
            if isinstance(accepted, Rejection):
                status = await self._reject(accepted, operations, report)
            else:
                status = await self._pass(*accepted, operations, report, now)
        except (NotLeader, ApiServerUnavailable):
            raise
        except FairleadError as e:
            if not report.conditions.is_false("Reconciled"):  # otherwise that is the cause of this error
                report.conditions.set("Reconciled", False, ApplyFailure.of(e).reason, e.message)
            report.conditions.set("Ready", False, "NotReconciled", e.message)
            status = msgspec.structs.replace(report.before, phase="Degraded")
        await report.write(status)

    async def _reject(
        self, rejection: Rejection, operations: Sequence[Object], report: PassReport
    ) -> LinkGatewayStatus:
        """Reports the rejection. Running pods are left alone, and the status keeps their numbers."""
        report.conditions.set("Accepted", False, rejection.reason, rejection.message)
        report.conditions.set("Ready", False, "NotAccepted", rejection.message)
        message = f"the LinkGateway {self._owner.name} is not accepted: {rejection.message}"
        await self._operations.refuse(operations, "GatewayNotAccepted", message)
        return msgspec.structs.replace(report.before, phase="Invalid")

    async def _pass(
        self,
        spec: LinkGatewaySpec,
        secrets: Secrets,
        operations: Sequence[Object],
        report: PassReport,
        now: float,
    ) -> LinkGatewayStatus:
        conditions = report.conditions
        conditions.set("Accepted", True, "Valid")
        secrets.set_condition(spec, conditions)
        await self._apply_children(spec, secrets, report, now)
        await check_ingress_class(self._cluster, spec, conditions)
        nodes = await self._redis.read(spec, secrets, conditions)
        clock = await self._memory.begin_pass(nodes, spec.replicas.max * spec.capacity, now)
        workload = await self._read_workload()
        revision = await self._director.current_revision(workload.deployment, conditions)
        machines = await self._machines.read(workload.pods, conditions, now)
        excluded = self._exclusions.observe(nodes, now)
        fleet = observe_fleet(workload.deployment, workload.pods, nodes, self._ready, now, revision, machines, excluded)
        queried = await self._prometheus.read(spec.scaling.signals.prometheus, conditions)
        rolling_out = self._rollouts.is_rolling_out(workload.deployment)
        fleet = replace(fleet, rollout=rolling_out, queried=queried, canary=self._canary.running)
        self._executor.check_removal(fleet, report, now)
        fleet = await self._run_operations(spec, operations, workload.deployment, nodes, fleet)
        decision, scaled = await self._scale(spec, fleet, workload, report, now, clock)
        plan = plan_rebalance(fleet, self._memory.history, spec, clock)
        self._plan, self._memory.history = plan, plan.history
        await self._rebalance.execute(plan, report)
        canary = await self._canary.observe(CanaryPass(fleet, workload.deployment, workload.pods, spec, report, now))
        await self._memory.end_pass(nodes, clock)
        wanted = decision.replicas if writes_scale(spec) else fleet.replicas
        removal = report_removal(decision, spec, report)
        direction = await self._director.direct(fleet, decision.inputs, nodes, spec, report, now)
        move_rate = await self._set_move_rate(spec, fleet, plan, direction, nodes)
        seen = RolloutPass(fleet, workload.deployment, direction, self._director.history, move_rate or 0.0, now)
        step = await self._rollout.execute(seen, spec, conditions)
        set_fleet_conditions(conditions, decision, fleet, spec, direction, step)
        set_pods_condition(conditions, workload.deployment, workload.pods, self._starting, now)
        links = self._links.shown(decision.inputs.live, moving=fleet.rollout or decision.inputs.leaving > 0, now=now)
        return msgspec.structs.replace(
            gateway_status(decision, fleet, spec, links, removal, report.timestamp),
            phase=phase(conditions, decision, plan, wanted, fleet),
            rebalance=rebalance_report(plan, report.before.rebalance, report.timestamp),
            canary=canary,
            selector=self._owner.label_selector,
            move_rate=move_rate,
            last_scale_time=report.timestamp if scaled else report.before.last_scale_time,
        )

    async def _run_operations(
        self,
        spec: LinkGatewaySpec,
        operations: Sequence[Object],
        deployment: Object,
        nodes: NodeMetrics | None,
        fleet: FleetObservation,
    ) -> FleetObservation:
        """Takes one step of each operation. Returns the fleet with the running operation."""
        disconnect = await self._disconnect.read(nodes, fleet)
        running = await self._operations.run(self._owner, spec, operations, deployment, fleet, self._plan, disconnect)
        await self._disconnect.execute(running, operations)
        if not running.name:
            return fleet
        self._executor.forget_removal()
        return replace(fleet, operation=running.name, rebalance_operation=running.rebalance)

    async def _set_move_rate(
        self,
        spec: LinkGatewaySpec,
        fleet: FleetObservation,
        plan: RebalancePlan,
        direction: LinkDirection,
        nodes: NodeMetrics | None,
    ) -> float | None:
        """Writes the rate of the budget of moves, in every mode, because pods drain no matter who scales them. Returns
        None if Redis cannot be read.
        """
        if nodes is None:
            return None
        rate = fleet_move_rate(fleet, spec.moves, plan.targets or direction.targets, plan.move_limit)
        await self._redis.set_move_rate(rate, spec.moves.max_per_second, nodes.now)
        self._metrics.set_move_rate(rate)
        return round(rate, 1)

    async def _apply_children(self, spec: LinkGatewaySpec, secrets: Secrets, report: PassReport, now: float) -> None:
        checksum = self._secrets.checksum(spec, secrets) or await self._children.applied_checksum(self._owner)
        before = report.before.decision
        excluded = 0 if before is None else before.inputs.excluded
        wanted, refused = children(self._owner, spec, checksum, excluded), []
        try:
            wanted = await self._canary.stage(wanted, spec, report)
            if not self._canary.running:
                wanted = await self._rollout.stage(wanted)
        except (NotLeader, ApiServerUnavailable):
            raise
        except FairleadError as e:  # no template is applied while the accepted one is not known
            wanted, refused = [one for one in wanted if one["kind"] != "Deployment"], [ApplyFailure.of(e)]
        failures = refused + await self._children.apply(self._owner, wanted, now)
        for message in self._children.repaired:
            report.add_event("Repaired", message, warning=True)
        if failures:
            messages = "; ".join(failure.message for failure in failures)
            report.conditions.set("Reconciled", False, failures[0].reason, messages)
        else:
            report.conditions.set("Reconciled", True, "Applied")

    async def _read_workload(self) -> Workload:
        owner = self._owner
        deployment = await self._cluster.get("Deployment", owner.namespace, owner.name)
        check_owned(deployment, owner)
        return Workload(deployment, await self._cluster.items("Pod", owner.namespace, owner.label_selector))

    async def _scale(
        self,
        spec: LinkGatewaySpec,
        fleet: FleetObservation,
        workload: Workload,
        report: PassReport,
        now: float,
        clock: float,
    ) -> tuple[Decision, bool]:
        """The decision, and whether the scale was written. `clock`: `now` by the history's clock."""
        decision = decide(fleet, self._memory.history, spec, clock)
        removed_at, self._memory.history = self._memory.history.removed_at, decision.history
        self._metrics.observe(decision, fleet, decision.replicas if writes_scale(spec) else fleet.replicas)
        set_scaling_conditions(report.conditions, decision, spec)
        scaled = await self._executor.execute(decision, fleet, workload.pods, spec, report, now)
        if not scaled:
            self._memory.history = replace(self._memory.history, removed_at=removed_at)
        return decision, scaled
