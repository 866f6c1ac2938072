"""Metrics of the operator: what it saw, what it decided, what it did, and what keeps it from it.

Made once by `main`, read at /metrics. Labels are namespaces and names of LinkGateways, which are few; those of a
LinkGateway that is gone are removed with its reconciler.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fairlead_operator.api.gateway_status import Condition
from fairlead_operator.autoscaler.decision import Decision
from fairlead_operator.autoscaler.history import FleetObservation

LABELS = ("namespace", "gateway")


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def gauge(name: str, text: str, *more: str) -> Gauge:
            return Gauge(f"fairlead_operator_{name}", text, (*LABELS, *more), registry=registry)

        self.leader = Gauge("fairlead_operator_leader", "1 while this replica acts", registry=registry)
        self.gateways = Gauge("fairlead_operator_gateways", "LinkGateways that are looked after", registry=registry)
        self.passes = Histogram(
            "fairlead_operator_reconcile_duration_seconds", "One look at one LinkGateway", registry=registry,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )  # fmt: skip
        self.failures = Counter(
            "fairlead_operator_reconcile_failures_total", "Looks that were given up", ["reason"], registry=registry
        )
        self.desired = gauge("desired_replicas", "Pods that are wanted")
        self.current = gauge("current_replicas", "Pods that the Deployment asks for")
        self.ready = gauge("ready_replicas", "Pods that take links")
        self.links = gauge("reported_connections", "Links, by the rows of the nodes")
        self.headroom = gauge("headroom_ratio", "Share of the ready pods' capacity that is free")
        self.stale = gauge("reports_stale", "Ready pods that have not told of themselves")
        self.bound = gauge("bound_replicas", "Pods that each rule asks for", "rule")
        self.condition = gauge("condition", "1 while the condition is True", "condition")
        self.decisions = Counter(
            "fairlead_operator_scale_decisions_total", "Decisions at each look", (*LABELS, "action", "winner"),
            registry=registry,
        )  # fmt: skip
        self.scalings = Counter(
            "fairlead_operator_scalings_total", "Scales that were written", (*LABELS, "action"), registry=registry
        )
        self.wrong = Counter(
            "fairlead_operator_wrong_removals_total", "Removals that took another pod", LABELS, registry=registry
        )
        self.operations = Counter(
            "fairlead_operator_operations_total", "LinkOperations that have ended", ("type", "outcome"),
            registry=registry,
        )  # fmt: skip

    def of(self, namespace: str, name: str) -> GatewayMetrics:
        return GatewayMetrics(self, (namespace, name))

    def forget(self, namespace: str, name: str) -> None:
        for metric in (
            self.desired, self.current, self.ready, self.links, self.headroom, self.stale, self.bound, self.condition,
            self.decisions, self.scalings, self.wrong,
        ):  # fmt: skip
            metric.remove_by_labels({"namespace": namespace, "gateway": name})


class GatewayMetrics:
    """Those of one LinkGateway."""

    def __init__(self, metrics: Metrics, labels: tuple[str, str]) -> None:
        self._metrics = metrics
        self._labels = labels
        self.wrong_removals = metrics.wrong.labels(*labels)

    def saw(self, decision: Decision, load: FleetObservation, wanted: int) -> None:
        """`wanted` pods are asked for, whatever the decision would ask for."""
        m, labels, inputs = self._metrics, self._labels, decision.inputs
        m.desired.labels(*labels).set(wanted)
        m.current.labels(*labels).set(load.replicas)
        m.ready.labels(*labels).set(inputs.ready)
        m.links.labels(*labels).set(inputs.live)
        room = inputs.ready * inputs.capacity
        m.headroom.labels(*labels).set(1 - inputs.live / room if room else 0)
        m.stale.labels(*labels).set(inputs.stale)
        for rule in ("load", "survive", "herd"):
            m.bound.labels(*labels, rule).set(getattr(decision.need, rule))
        m.decisions.labels(*labels, decision.action, decision.winner).inc()

    def acted(self, decision: Decision) -> None:
        self._metrics.scalings.labels(*self._labels, decision.action).inc()

    def conditions(self, told: Iterable[Condition]) -> None:
        for one in told:
            self._metrics.condition.labels(*self._labels, one.type).set(one.status == "True")
