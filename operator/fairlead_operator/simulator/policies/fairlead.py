"""Fairlead's own autoscaler: the operator's `decide`, `direct_links` and `plan_rebalance`, called in every pass with an
observation of the modelled pods."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fairlead.fleet.directives.exclusion import Exclusion
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.gateway_status import DecisionInputs
from fairlead_operator.autoscaler.decision import Decision, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.move_rate import fleet_move_rate
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rebalance import RebalancePlan, plan_rebalance
from fairlead_operator.autoscaler.rollout import LinkDirection, RolloutHistory, direct_links
from fairlead_operator.autoscaler.rollout_step import NOT_PACED, is_paced, plan_step
from fairlead_operator.kube.machine import Machine
from fairlead_operator.simulator.fleet.directives import NO_DIRECTIVES, Directives
from fairlead_operator.simulator.fleet.pod_table import NEVER
from fairlead_operator.simulator.policies.scaling_policy import FleetView, ScaleOrder, ScalingPolicy

VALID_SECONDS = 30
"""For how long a directive in Redis is valid if the operator does not renew it."""


class FairleadPolicy(ScalingPolicy):
    name = "fairlead"
    text = "the operator's own decisions, rollout and rebalance; agents move at the pace of the fleet's budget"
    period = 10
    """A pass of the operator."""
    drains = True

    def __init__(self, spec: LinkGatewaySpec) -> None:
        self._spec = spec
        self._history = History()
        self._rollout = RolloutHistory()
        self._directives = NO_DIRECTIVES
        self._written_at = 0
        self.decision: Decision | None = None
        """The last decision."""
        self.rebalance: RebalancePlan | None = None
        """The plan of the same pass."""
        self.direction = LinkDirection("", "")
        """Where new links go during a rollout, by the same pass."""
        self.step = NOT_PACED
        """How far a rollout goes, by the same pass."""

    def order(self, view: FleetView) -> ScaleOrder:
        fleet, now = self._observe(view), float(view.now)
        self.decision = decision = decide(fleet, self._history, self._spec, now)
        plan = plan_rebalance(fleet, decision.history, self._spec, now)
        self.rebalance, self._history = plan, plan.history
        self._direct(fleet, decision.inputs, plan, now)
        return ScaleOrder(decision.replicas, decision.victims, self._written(view), self.step)

    def _direct(self, fleet: FleetObservation, inputs: DecisionInputs, plan: RebalancePlan, now: float) -> None:
        """Where new links go during a rollout, and how far it goes."""
        spec, history = self._spec, self._rollout.observe(fleet, now)
        self.direction = direct_links(fleet, inputs, history, spec, now, paced=is_paced(fleet, spec))
        self._rollout = history.direct(self.direction, now) if fleet.readable else history
        rate = fleet_move_rate(fleet, spec.moves, plan.targets or self.direction.targets, plan.move_limit)
        self.step = plan_step(fleet, self.direction, self._rollout, spec, rate, now, self.step)

    def _written(self, view: FleetView) -> Directives:
        """What is in Redis after this pass. While Redis is unavailable, this is what was written before, until it
        expires.
        """
        if view.readable:
            preferred = int(self.direction.revision) if self.direction.revision else None
            targets = (self.rebalance.targets if self.rebalance is not None else {}) or self.direction.targets
            limit = self.rebalance.move_limit if self.rebalance is not None else math.inf
            self._directives, self._written_at = Directives(preferred, targets, limit), view.now
        elif view.now - self._written_at >= VALID_SECONDS:
            self._directives = NO_DIRECTIVES
        return self._directives

    def _observe(self, view: FleetView) -> FleetObservation:
        return FleetObservation(
            view.replicas,
            tuple(self._observed_pods(view)),
            readable=view.readable,
            rollout=view.rolling_out,
            revision=str(view.revision),
        )

    def _observed_pods(self, view: FleetView) -> Iterator[PodObservation]:
        pods, now, capacity = view.pods, view.now, self._spec.capacity
        reason = Exclusion.ROLLOUT if self._directives.preferred is not None else Exclusion.REBALANCE
        state = zip(
            pods.started.tolist(), pods.started_at.tolist(), pods.excluded.tolist(), pods.leaving.tolist(), strict=True
        )
        reports = zip(
            pods.reported_at.tolist(), pods.reported_links.tolist(), pods.reported_refused.tolist(),
            pods.reported_moved.tolist(), pods.reported_left.tolist(), pods.reported_spare.tolist(), strict=True,
        )  # fmt: skip
        places = zip(pods.names, pods.revision.tolist(), pods.zone.tolist(), strict=True)
        for (name, revision, zone), pod, report in zip(places, state, reports, strict=True):
            started, started_at, excluded, leaving = pod
            reported_at, links, refused, moved, left, spare = report
            yield PodObservation(
                name=name,
                uid=name,
                ready=started,
                excluded_by=reason if excluded else "",
                ready_for=float(max(0, now - started_at)),
                leaving=leaving,
                age=math.inf if reported_at == NEVER or not view.readable else float(now - reported_at),
                links=links,
                capacity=capacity if reported_at != NEVER else 0,
                refused=refused,
                moved=moved,
                left=left,
                spare_accept_rate=spare,
                revision=str(revision),
                machine=Machine(name, f"zone-{zone}"),
            )
