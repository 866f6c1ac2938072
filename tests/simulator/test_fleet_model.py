"""The model's parts: who gets an attempt, how long agents wait, and what the Deployment creates and removes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.app.access import accept_rate
from fairlead.wire.retry import HANDED_OUT_MS, RetryPolicy, after_refusal, first_ceiling, retry_after
from fairlead_operator.api.pod_spec import RollingUpdate
from fairlead_operator.simulator.arrays import Counts, Shares
from fairlead_operator.simulator.fleet import pauses, pod_table
from fairlead_operator.simulator.fleet.deployment import DOWN, ModelDeployment, PodStarts
from fairlead_operator.simulator.fleet.load_balancers import BALANCERS, LeastConnections, PinningBalancer, RoundRobin
from fairlead_operator.simulator.fleet.pod_table import PodTable
from fairlead_operator.simulator.fleet.reconnect_queue import ReconnectQueue
from fairlead_operator.simulator.scenarios.scenario import NOWHERE, Span


def array(*numbers: int) -> Counts:
    return np.array(numbers, np.int64)


@settings(deadline=None)
@given(
    balancer=st.sampled_from(sorted(BALANCERS)),
    pods=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 1000)), min_size=1, max_size=20),
    anywhere=st.integers(0, 10**6),
)
def test_a_load_balancer_sends_every_attempt_to_one_pod(
    balancer: str, pods: list[tuple[int, int]], anywhere: int
) -> None:
    links, back = np.array(pods, np.int64).T
    attempts = BALANCERS[balancer](np.random.default_rng(1)).spread(anywhere, back, links)
    assert attempts.min() >= 0
    assert attempts.sum() == anywhere + back.sum()


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.integers(0, 5000))
def test_least_connections_does_as_if_each_agent_came_by_itself(links: list[int], number: int) -> None:
    expected = list(links)
    for _ in range(number):
        expected[expected.index(min(expected))] += 1
    none = np.zeros(len(links), np.int64)
    attempts = LeastConnections(np.random.default_rng(1)).spread(number, none, array(*links))
    assert sorted(attempts + array(*links)) == sorted(expected)


def test_round_robin_goes_on_where_it_stopped() -> None:
    balancer, none = RoundRobin(np.random.default_rng(1)), array(0, 0, 0)
    assert [balancer.spread(2, none, none).tolist() for _ in range(3)] == [[1, 1, 0], [1, 0, 1], [0, 1, 1]]


def test_a_balancer_that_pins_sends_agents_back() -> None:
    assert PinningBalancer(np.random.default_rng(1)).spread(0, array(5, 0, 7), array(0, 0, 0)).tolist() == [5, 0, 7]


def mean(shares: Shares) -> float:
    return float((np.arange(len(shares)) * shares).sum())


@pytest.mark.parametrize("first", [1, 7, 30])
def test_pauses_are_those_of_the_agents_rounded_up_to_a_second(first: int) -> None:
    shares = pauses.after_loss(first)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] == 0, "the next attempt is in the next second, not in this one"
    rng = random.Random(1)
    policy = RetryPolicy(first * 1000, cap=HANDED_OUT_MS)
    drawn = [max(1, -int(-policy.delay(0, rng.random()) // 1000)) for _ in range(20_000)]
    assert mean(shares) == pytest.approx(sum(drawn) / len(drawn), rel=0.02)
    assert np.flatnonzero(shares).tolist() == sorted(set(drawn))


def test_pauses_after_a_refusal_are_those_of_gateway_and_agent() -> None:
    rng = random.Random(1)
    for most in (1, 10, pauses.MOST_ASKED):
        drawn = [-int(-after_refusal(retry_after(most, rng.random()), rng.random()) // 1000) for _ in range(20_000)]
        assert mean(pauses.after_retry_after(most)) == pytest.approx(sum(drawn) / len(drawn), rel=0.02)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 10, 200]))
def test_the_first_ceiling_is_that_of_the_gateway(links: int, rate: int) -> None:
    assert pauses.first_seconds(array(links), rate).tolist() == [first_ceiling(links, rate) // 1000]


def test_a_modelled_node_has_the_burst_of_a_real_one() -> None:
    assert pod_table.BURST_SECONDS == accept_rate.BURST_SECONDS


def test_agents_that_are_refused_wait_longer_each_time_and_are_counted_when_they_are_linked() -> None:
    queue = ReconnectQueue(np.random.default_rng(1))
    queue.lost(0, 1000, 5)
    waited = 0
    for now in range(1, 400):
        due = queue.take_due(now, 0)
        waited += due.total
        if now < 300:
            queue.unanswered(now, due)
        else:
            queue.linked(due)
    assert (queue.waiting, queue.counted(), int(queue.waits.sum())) == (0, 0, 1000)
    assert np.flatnonzero(queue.waits).min() >= 300
    assert waited < 1000 * 40, "agents that tried every second would have made 300 attempts each"


def deployment(pods: PodTable, stuck: Span = NOWHERE) -> ModelDeployment:
    rng = np.random.default_rng(1)
    made = ModelDeployment(pods, rng, RollingUpdate(max_surge="25%", min_ready_seconds=2), PodStarts(5, 8), stuck)
    made.begin(8)
    return made


def test_a_rollout_keeps_the_wanted_number_ready_and_stays_within_the_surge() -> None:
    pods = PodTable(100)
    made = deployment(pods)
    made.roll_out()
    assert made.rolling_out
    for now in range(1, 200):
        pods.renew_readiness(now)
        made.reconcile(now, (), by_links=True)
        assert int(pods.serving.sum()) >= 8
        assert int(pods.staying.sum()) <= 10  # maxSurge 25 %
        pods.drop(pods.leaving)
        if not made.rolling_out:
            break
    assert not made.rolling_out
    assert len(pods) == 8


def test_pods_that_do_not_start_go_first_then_the_victim_then_the_emptiest() -> None:
    pods = PodTable(100)
    made = deployment(pods)
    pods.links[:] = [10, 20, 5, 40, 50, 60, 70, 80]
    pods.report(0)
    made.replicas = 9
    made.reconcile(1, (), by_links=True)
    made.replicas = 6
    made.reconcile(2, ["pod-00005"], by_links=True)
    gone = [name for name, left in zip(pods.names, pods.leaving.tolist(), strict=True) if left]
    assert gone == ["pod-00002", "pod-00005", "pod-00008"]


def test_a_stuck_pod_starts_when_its_span_is_over_and_the_others_as_usual() -> None:
    pods = PodTable(100)
    made = deployment(pods, Span(10, 500))
    for now in range(5, 600, 5):
        pods.renew_readiness(now)
        made.replicas = 10 if now >= 10 else 9
        made.reconcile(now, (), by_links=True)
        expected = 8 if now < 10 else 9 if 30 <= now < 500 else 10
        assert int(pods.serving.sum()) == expected or 5 <= now < 30
    assert int(pods.serving.sum()) == 10


def test_pods_are_spread_over_the_zones_and_none_is_placed_in_one_that_is_down() -> None:
    pods = PodTable(100)
    made = ModelDeployment(pods, np.random.default_rng(1), RollingUpdate(), PodStarts(5, 8), zone_down=Span(10, 20))
    made.begin(7)
    assert sorted(np.bincount(pods.zone).tolist()) == [2, 2, 3]
    pods.drop(pods.zone == DOWN)
    made.reconcile(10, (), by_links=True)
    assert np.bincount(pods.zone, minlength=3).tolist() == [0, 4, 3]
    made.replicas = 9
    made.reconcile(20, (), by_links=True)
    assert np.bincount(pods.zone, minlength=3).tolist() == [2, 4, 3]


def test_pods_start_as_fast_as_the_distribution_says() -> None:
    drawn = np.sort(PodStarts(30, 60).draw(np.random.default_rng(1), 10_000))
    assert drawn[5000] == pytest.approx(30, abs=1.5)
    assert drawn[9500] == pytest.approx(60, abs=3)
    assert set(PodStarts(20, 20).draw(np.random.default_rng(1), 100).tolist()) == {20}
