"""Carries out the rebalance that a pass has planned: tells the nodes, and reports when one begins and ends.

Each reconciler has one. It keeps no state, because the plan contains everything, and what it writes to Redis expires by
itself, so that a rebalance stops with the operator.
"""

from __future__ import annotations

from fairlead.errors import BusUnavailable
from fairlead_operator.autoscaler.rebalance import RebalancePlan
from fairlead_operator.inputs.fleet_redis import FleetRedis
from fairlead_operator.metrics import GatewayMetrics
from fairlead_operator.runtime.reports.pass_report import PassReport
from fairlead_operator.runtime.reports.status import set_rebalance_condition


class RebalanceExecutor:
    def __init__(self, redis: FleetRedis, metrics: GatewayMetrics) -> None:
        self._redis = redis
        self._metrics = metrics

    async def execute(self, plan: RebalancePlan, report: PassReport) -> None:
        """Writes the targets of `plan`, and sets Rebalanced."""
        set_rebalance_condition(report.conditions, plan)
        self._metrics.rebalance(plan)
        if plan.targets or plan.ended is not None:
            try:
                await self._redis.write_rebalance(plan.targets)
            except BusUnavailable as e:
                # Targets that were written before expire; the next pass writes them again.
                report.conditions.set("RedisReachable", False, "Unreachable", e.message)
        if plan.ended is not None:
            report.add_event("RebalanceEnded", f"{plan.ended.outcome}: {plan.ended.message}")
        elif plan.started:
            report.add_event("RebalanceStarted", plan.reason)
