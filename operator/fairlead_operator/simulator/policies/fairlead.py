"""Fairlead's own autoscaler: the operator's `decide` and `plan_rebalance`, called in every pass with an observation of
the modelled pods."""

from __future__ import annotations

import math

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.decision import Decision, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rebalance import RebalancePlan, plan_rebalance
from fairlead_operator.simulator.fleet.pod_table import NEVER
from fairlead_operator.simulator.policies.scaling_policy import FleetView, ScaleOrder, ScalingPolicy


class FairleadPolicy(ScalingPolicy):
    name = "fairlead"
    text = "the operator's own decisions and rebalance; agents move at the pace of the fleet's budget"
    period = 10
    """A pass of the operator."""
    drains = True

    def __init__(self, spec: LinkGatewaySpec) -> None:
        self._spec = spec
        self._history = History()
        self.decision: Decision | None = None
        """The last decision."""
        self.rebalance: RebalancePlan | None = None
        """The plan of the same pass."""

    def order(self, view: FleetView) -> ScaleOrder:
        fleet, now = self._observe(view), float(view.now)
        self.decision = decision = decide(fleet, self._history, self._spec, now)
        plan = plan_rebalance(fleet, decision.history, self._spec, now)
        self.rebalance, self._history = plan, plan.history
        return ScaleOrder(decision.replicas, decision.victim, plan.targets)

    def _observe(self, view: FleetView) -> FleetObservation:
        pods, now, capacity = view.pods, view.now, self._spec.capacity
        columns = zip(
            pods.names,
            pods.ready.tolist(),
            pods.ready_at.tolist(),
            pods.left_at.tolist(),
            pods.reported_at.tolist(),
            pods.reported_links.tolist(),
            pods.reported_refused.tolist(),
            pods.reported_moved.tolist(),
            strict=True,
        )
        observed = tuple(
            PodObservation(
                name=name,
                uid=name,
                ready=ready and left_at == NEVER,
                ready_for=float(max(0, now - ready_at)),
                leaving=left_at != NEVER,
                age=math.inf if reported_at == NEVER or not view.readable else float(now - reported_at),
                links=links,
                capacity=capacity if reported_at != NEVER else 0,
                refused=refused,
                moved=moved,
            )
            for name, ready, ready_at, left_at, reported_at, links, refused, moved in columns
        )
        return FleetObservation(view.replicas, observed, readable=view.readable, rollout=view.rolling_out)
