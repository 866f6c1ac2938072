"""Prometheus metrics of the operator: what it observed, what it decided, what it did, and what failed.

`process` creates them once, and `runtime.health` serves them at /metrics. Their labels are namespaces and names of
LinkGateways, which are few; the controller removes the metrics of a LinkGateway that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fairlead_operator.api.gateway_status import Condition
from fairlead_operator.autoscaler.canary.canary_analysis import CanaryState
from fairlead_operator.autoscaler.decision import Decision
from fairlead_operator.autoscaler.history.rebalance_history import RebalanceOutcome
from fairlead_operator.autoscaler.observation import FleetObservation
from fairlead_operator.autoscaler.rebalance import RebalancePlan
from fairlead_operator.autoscaler.removal_hold import Hold

LABELS = ("namespace", "gateway")


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def gauge(name: str, text: str, *more: str) -> Gauge:
            return Gauge(f"fairlead_operator_{name}", text, (*LABELS, *more), registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"fairlead_operator_{name}", text, labels, registry=registry)

        self.leader = Gauge("fairlead_operator_leader", "1 while this replica is the leader", registry=registry)
        self.gateways = Gauge("fairlead_operator_gateways", "LinkGateways that are reconciled", registry=registry)
        self.passes = Histogram(
            "fairlead_operator_reconcile_duration_seconds", "Duration of one pass over one LinkGateway",
            registry=registry, buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )  # fmt: skip
        self.failures = counter("reconcile_failures_total", "Passes that were given up", "reason")
        self.operations = counter("operations_total", "LinkOperations that have ended", "type", "outcome")

        self.desired = gauge("desired_replicas", "Pods that the last decision asks for")
        self.current = gauge("current_replicas", "Pods that the Deployment asks for")
        self.ready = gauge("ready_replicas", "Pods that serve links")
        self.excluded = gauge("excluded_replicas", "Ready pods that leave new links to others")
        self.links = gauge("reported_links", "Links that the nodes report")
        self.headroom = gauge("headroom_ratio", "Share of the ready pods' capacity that is free")
        self.move_rate = gauge("move_rate", "Moves per second that the fleet may make")
        self.stale = gauge("stale_reports", "Ready pods that have not reported for more than 15 s")
        self.links_directed = gauge("new_links_directed", "1 while only pods of the new revision take new links")
        self.rules = gauge("rule_replicas", "Pods that each scaling rule requires", "rule")
        self.compared = gauge("compared_replicas", "Mode DryRun: pods that another autoscaler would set", "autoscaler")
        self.removal_held = gauge("removal_held", "1 while this keeps a pod from being removed", "by")
        self.condition = gauge("condition", "1 while the condition is True", "condition")
        self.decisions = counter("scale_decisions_total", "Decisions, one in each pass", *LABELS, "action", "winner")
        self.scalings = counter("scalings_total", "Changes of the scale that were written", *LABELS, "action")
        self.wrong_removals = counter("wrong_removals_total", "Removals that took another pod than chosen", *LABELS)
        self.canary_runs = gauge("canary", "1 while a canary of a new pod template runs")
        self.canaries = counter("canaries_total", "Canaries that have ended", *LABELS, "outcome")
        self.to_move = gauge("rebalance_links", "Links that the running rebalance has still to move")
        self.rebalances = counter("rebalances_total", "Rebalances that have ended", *LABELS, "outcome")
        self._of_a_gateway = (
            self.desired, self.current, self.ready, self.excluded, self.links, self.headroom, self.move_rate,
            self.stale, self.links_directed, self.rules, self.compared, self.removal_held, self.condition,
            self.decisions, self.scalings, self.wrong_removals, self.canary_runs, self.canaries, self.to_move,
            self.rebalances,
        )  # fmt: skip

    def of(self, namespace: str, name: str) -> GatewayMetrics:
        return GatewayMetrics(self, (namespace, name))

    def forget(self, namespace: str, name: str) -> None:
        for metric in self._of_a_gateway:
            metric.remove_by_labels({"namespace": namespace, "gateway": name})


class GatewayMetrics:
    """The metrics of one LinkGateway."""

    def __init__(self, metrics: Metrics, labels: tuple[str, str]) -> None:
        self._metrics = metrics
        self._labels = labels
        self.wrong_removals = metrics.wrong_removals.labels(*labels)
        for outcome in RebalanceOutcome:
            metrics.rebalances.labels(
                *labels, outcome
            )  # starts at 0, so that Prometheus sees the first one as an increase
        for state in (CanaryState.SUCCEEDED, CanaryState.FAILED):
            metrics.canaries.labels(*labels, state)

    def observe(self, decision: Decision, fleet: FleetObservation, desired: int) -> None:
        """`desired` is the number to which the Deployment is scaled, which may differ from the decision's."""
        m, labels, inputs = self._metrics, self._labels, decision.inputs
        capacity = inputs.ready * inputs.capacity
        m.desired.labels(*labels).set(desired)
        m.current.labels(*labels).set(fleet.replicas)
        m.ready.labels(*labels).set(inputs.ready)
        m.excluded.labels(*labels).set(inputs.excluded)
        m.links.labels(*labels).set(inputs.live)
        m.headroom.labels(*labels).set(1 - inputs.live / capacity if capacity else 0)
        m.stale.labels(*labels).set(inputs.stale)
        for rule in decision.rules:
            m.rules.labels(*labels, rule.name).set(rule.replicas)
        m.compared.remove_by_labels(dict(zip(LABELS, labels, strict=True)))
        for one in decision.comparison:
            m.compared.labels(*labels, one.name).set(one.replicas)
        for hold in Hold:
            m.removal_held.labels(*labels, hold).set(decision.hold is not None and decision.hold.by == hold)
        m.decisions.labels(*labels, decision.action, decision.target.winner).inc()

    def set_move_rate(self, rate: float) -> None:
        self._metrics.move_rate.labels(*self._labels).set(rate)

    def links_directed(self, directed: bool) -> None:
        self._metrics.links_directed.labels(*self._labels).set(directed)

    def scaled(self, decision: Decision) -> None:
        self._metrics.scalings.labels(*self._labels, decision.action).inc()

    def rebalance(self, plan: RebalancePlan) -> None:
        self._metrics.to_move.labels(*self._labels).set(plan.to_move)
        if plan.ended is not None:
            self._metrics.rebalances.labels(*self._labels, plan.ended.outcome).inc()

    def canary(self, *, running: bool) -> None:
        self._metrics.canary_runs.labels(*self._labels).set(running)

    def canary_ended(self, outcome: CanaryState) -> None:
        self._metrics.canaries.labels(*self._labels, outcome).inc()

    def set_conditions(self, conditions: Iterable[Condition]) -> None:
        self._metrics.condition.remove_by_labels(dict(zip(LABELS, self._labels, strict=True)))
        for condition in conditions:
            self._metrics.condition.labels(*self._labels, condition.type).set(condition.status == "True")
