"""The rate of moves that the operator writes for a fleet: of whom it counts what, and what the nodes are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet import schema
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.moves.move_bucket import MOVE_RATE_VALID_MS, MoveBucket
from fairlead.store.reply import integer, items, text
from fairlead_operator.api.moves_spec import Moves
from fairlead_operator.autoscaler.move_rate import fleet_move_rate
from fairlead_operator.autoscaler.observation import FRESH, FleetObservation, PodObservation

from support.operator_namespace import OperatorNamespace, condition

POD = PodObservation("a", age=1.0, capacity=100, spare_accept_rate=60.0)
IDLE = [
    replace(POD, ready=False), replace(POD, leaving=True), replace(POD, age=FRESH + 1),
    replace(POD, spare_accept_rate=0.0), replace(POD, excluded_by="rebalance"),
]  # fmt: skip
"""Pods that receive nothing."""


def fleet(*pods: PodObservation) -> FleetObservation:
    return FleetObservation(replicas=len(pods), pods=pods)


@given(st.integers(0, 5), st.lists(st.sampled_from(IDLE)), st.integers(1, 200))
def test_moves_are_half_of_what_receiving_pods_accept(receiving: int, others: list[PodObservation], most: int) -> None:
    pods = [replace(POD, name=f"pod-{i}") for i in range(receiving)]
    rate = fleet_move_rate(fleet(*others, *pods), Moves(max_per_second=most))
    assert rate == pytest.approx(min(most, 30 * receiving))


def test_moves_of_a_rebalance_are_paced_by_the_pods_that_take_links_until_the_next_pass() -> None:
    pods = tuple(replace(POD, name=f"pod-{i}") for i in range(3))
    targets = {"pod-0": RebalanceTarget(10, 10), "pod-1": RebalanceTarget(10, 10), "pod-2": RebalanceTarget(10)}
    assert fleet_move_rate(fleet(*pods), Moves(max_per_second=200), targets, limit=50) == 30
    assert fleet_move_rate(fleet(*pods), Moves(max_per_second=200), targets, limit=4.5) == 4.5


async def test_nodes_are_told_the_rate_in_every_pass(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(
        await namespace.gateway(moves={"maxPerSecond": 70}, replicas={"min": 3, "max": 3})
    )
    status = await namespace.reconcile(reconciler)
    assert status["moveRate"] == 0
    assert await budget(namespace) == (0, 70)
    one, two, full = await namespace.run_pods(3)
    await namespace.beat(one, 10, spare_accept_rate=60.0)
    await namespace.beat(two, 10, spare_accept_rate=30.0)
    await namespace.beat(full, 1000, spare_accept_rate=0.0)
    status = await namespace.reconcile(reconciler)
    assert status["moveRate"] == 45
    assert await budget(namespace) == (45, 70)
    await namespace.beat(one, 10, spare_accept_rate=600.0)
    assert (await namespace.reconcile(reconciler))["moveRate"] == 70
    grant = await MoveBucket(namespace.store).take(1, own_rate=1.0)
    assert (grant.moves, grant.rate) == (1, 70)


async def test_a_budget_of_another_type_is_written_again_when_a_node_has_removed_it(
    namespace: OperatorNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then the pass does everything else, and the nodes compute the rate themselves."""
    reconciler = namespace.reconciler(await namespace.gateway(moves={"maxPerSecond": 70}))
    await namespace.store.submit("DEL", schema.MOVES)
    await namespace.store.submit("RPUSH", schema.MOVES, "a note")
    status = await namespace.reconcile(reconciler)
    assert condition(status, "Reconciled")[0] == condition(status, "RedisReachable")[0] == "True"
    (said,) = [one for one in caplog.messages if "the rate of moves was not written" in one]
    assert "WRONGTYPE" in said
    await namespace.store.submit("DEL", schema.MOVES)
    await namespace.reconcile(reconciler)
    assert (await budget(namespace))[1] == 70


async def budget(namespace: OperatorNamespace) -> tuple[float, float]:
    """The rate and the greatest rate that stand in Redis, where the rate is still valid."""
    rate, most, until = items(await namespace.store.submit("HMGET", schema.MOVES, "rate", "most", "until"))
    seconds, _ = items(await namespace.store.submit("TIME"))
    assert 0 < integer(until) - integer(seconds) * 1000 <= MOVE_RATE_VALID_MS + 1_000
    return float(text(rate)), float(text(most))
