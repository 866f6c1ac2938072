"""The part of the operator's passes that concerns a rebalance, on what real nodes report in Redis: its own code plans
the moves and their rate and writes both, as in a cluster. Every node counts as a ready pod.

Used by the test of the rebalance and by `bench.moving.rebalance`.
"""

from __future__ import annotations

import asyncio

from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Tokens, TokenSecret
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.move_rate import fleet_move_rate
from fairlead_operator.autoscaler.observation import FleetObservation, NodeMetrics, PodObservation
from fairlead_operator.autoscaler.rebalance import RebalancePlan, plan_rebalance
from fairlead_operator.inputs.fleet_redis import FleetRedis
from fairlead_operator.inputs.secrets import Secrets

from support.gateway.process import TIMEOUT


class RebalancePasses:
    def __init__(self, redis_url: str, operation: str = "") -> None:
        """`operation`: the uid of a LinkOperation that asks for a rebalance, "" if none does."""
        tokens = Tokens(secret_ref=TokenSecret(name="tokens"))
        self.spec = LinkGatewaySpec(image="gateway", redis=Redis(url=redis_url), tokens=tokens)
        self.redis = FleetRedis()
        self.plans: list[RebalancePlan] = []
        self.rates: list[tuple[float, float]] = []
        """When the rate of moves was written, by the event loop's clock, and the rate."""
        self._operation = operation
        self._history = History()

    async def read(self) -> NodeMetrics:
        """What the nodes report. A pass that a busy Redis does not answer is repeated. Raises TimeoutError."""
        conditions = Conditions((), 1, "2026-01-01T00:00:00Z")
        async with asyncio.timeout(TIMEOUT):
            while (nodes := await self.redis.read(self.spec, Secrets("here", {}), conditions)) is None:
                await asyncio.sleep(0.5)
        return nodes

    async def run_once(self) -> RebalancePlan:
        loop = asyncio.get_running_loop()
        nodes = await self.read()
        pods = tuple(PodObservation(name).with_report(row, nodes.now) for name, row in sorted(nodes.rows.items()))
        fleet = FleetObservation(len(pods), pods, rebalance_operation=self._operation)
        plan = plan_rebalance(fleet, self._history, self.spec, loop.time())
        self._history = plan.history
        self.plans.append(plan)
        if plan.targets or plan.ended is not None:
            await self.redis.write_rebalance(plan.targets)
        moves = self.spec.moves
        rate = fleet_move_rate(fleet, moves, plan.targets, plan.move_limit)
        await self.redis.set_move_rate(rate, moves.max_per_second, nodes.now)
        self.rates.append((loop.time(), rate))
        return plan

    async def run_until_ended(self, period: float, timeout: float) -> RebalancePlan:
        """A pass every `period` seconds, until a rebalance has ended. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while (plan := await self.run_once()).ended is None:
                await asyncio.sleep(period)
        return plan

    async def aclose(self) -> None:
        await self.redis.aclose()
