"""Moves in the model: the operator's own rebalance and the fleet's budget, on a fleet that can be watched."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fleet.moves.move_rate import RECEIVED_SHARE
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Tokens, TokenSecret
from fairlead_operator.api.pod_spec import RollingUpdate
from fairlead_operator.simulator.arrays import Counts
from fairlead_operator.simulator.fleet.deployment import PodStarts
from fairlead_operator.simulator.fleet.moves import FleetMoves
from fairlead_operator.simulator.fleet.pod_table import PodTable
from fairlead_operator.simulator.policies.fairlead import FairleadPolicy
from fairlead_operator.simulator.scenarios.scenario import NOWHERE, Scenario, Span
from fairlead_operator.simulator.simulation import ModelOptions, Simulation

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    accept_rate=50,
    replicas=Replicas(min=2, max=20),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)
MINUTE = 60


def fleet(*links: int) -> PodTable:
    pods = PodTable(SPEC.accept_rate)
    pods.add(np.zeros(len(links), np.int64), 0)
    pods.renew_readiness(0)
    pods.links[:] = links
    pods.report(0)
    return pods


def grown(balancer: str, minutes: int) -> tuple[Simulation, FairleadPolicy]:
    """A fleet whose demand grows by half within ten minutes, so that pods are added, and is constant then. Agents lose
    no links, so nothing but a rebalance fills the new pods."""
    demand = np.interp(np.arange(minutes * MINUTE + 1), [0, 600], [4000, 6000])
    scenario = Scenario("growth", "", np.rint(demand).astype(np.int64))
    policy = FairleadPolicy(SPEC)
    return Simulation(scenario, SPEC, policy, ModelOptions(balancer, PodStarts(20, 30), lost_per_day=0)), policy


@pytest.mark.parametrize("cut", [False, True])
def test_the_operator_is_told_which_agents_have_said_goodbye(cut: bool) -> None:
    """Half of the agents go within a minute. They are stopped, or cut off: then their pods wait for their return."""
    demand = np.interp(np.arange(10 * MINUTE + 1), [300, 360], [4000, 2000])
    span = Span(300, 360) if cut else NOWHERE
    scenario = Scenario("fall", "", np.rint(demand).astype(np.int64), cut=span)
    policy = FairleadPolicy(SPEC)
    simulation = Simulation(scenario, SPEC, policy, ModelOptions(lost_per_day=0)).run()
    assert simulation.pods.reported_left.sum() == (0 if cut else 2000)
    assert policy.decision is not None
    history = policy.decision.history.links
    assert (history.outage is not None) == cut
    assert history.peaks[0][1] == (4000 if cut else 2000)


def test_pods_that_are_added_are_filled_to_within_a_tenth_of_the_mean() -> None:
    simulation, policy = grown("least-connections", 30)
    simulation.run()
    links = simulation.pods.links[simulation.pods.serving]
    assert len(links) >= 9
    assert links.max() <= 1.10 * links.mean() + 1
    assert policy.rebalance is not None
    assert policy.rebalance.reason.endswith("evenly")
    assert 0 < simulation.measures.closes <= 6000, "no agent twice within the hour"
    assert simulation.measures.greatest_closes <= RECEIVED_SHARE * SPEC.accept_rate * len(links)


@pytest.mark.parametrize("balancer", ["random", "round-robin"])
def test_pods_that_have_enough_get_no_new_links_so_hardly_a_move_is_wasted(balancer: str) -> None:
    simulation, policy = grown(balancer, 30)
    for _ in range(30 * MINUTE):
        simulation.step()
        assert simulation.pods.serving.any()
        assert policy.rebalance is None or policy.rebalance.given_up is None
    links = simulation.pods.links
    assert links.max() <= 1.10 * links.mean() + 1
    assert simulation.measures.refused == 0
    # From 6 pods to 9: each that is added gets its share, 6000 ÷ 9, once; a random choice would take twice as many.
    assert simulation.measures.closes <= 1.25 * 3 * 6000 / 9


def test_donors_move_what_is_above_their_targets_and_nobody_twice_within_the_hour() -> None:
    pods = fleet(900, 100)
    budget = FleetMoves(SPEC, np.random.default_rng(1))
    budget.report(pods)
    assert budget.rate(pods) == RECEIVED_SHARE * 2 * SPEC.accept_rate
    kept = np.array([860, 500])
    pods.recent[0, 3] = 870
    moved: Counts = np.zeros(2, np.int64)
    for now in range(10):
        moving = budget.draw(pods, kept, now)
        pods.links -= moving
        moved += moving
    assert moved.tolist() == [30, 0], "870 of 900 have been moved within the hour"
    pods.recent[:] = 0
    for now in range(10, 20):
        pods.links -= budget.draw(pods, kept, now)
    assert pods.links.tolist() == [860, 100]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=6), st.integers(1, 5))
def test_pods_that_leave_share_the_budget_and_are_empty_in_time(links: list[int], leaving: int) -> None:
    pods = fleet(*links)
    budget = FleetMoves(SPEC, np.random.default_rng(1))
    pods.leave(np.arange(min(leaving, len(links) - 1)), 0)
    went = np.flatnonzero(pods.leaving)
    for now in range(SPEC.drain_seconds + 1):
        pods.report(now)
        budget.report(pods)
        moving = budget.draw(pods, None, now)
        assert not moving[pods.serving].any()
        assert (moving <= pods.links).all()
        if now < SPEC.drain_seconds // 2 - 61:
            assert moving.sum() <= max(1.0, budget.rate(pods))
        pods.links -= moving
    assert not pods.links[went].any()


def test_a_rollout_moves_each_agent_once_because_the_new_pods_take_all_new_links() -> None:
    scenario = Scenario("rollout", "", np.full(20 * MINUTE + 1, 4000), rollout_at=2 * MINUTE)
    policy = FairleadPolicy(SPEC)
    simulation = Simulation(scenario, SPEC, policy, ModelOptions(starts=PodStarts(20, 30), lost_per_day=0))
    directed = set()
    for _ in range(20 * MINUTE):
        simulation.step()
        directed.add(policy.direction.revision)
    assert directed == {"", "1"}
    assert not simulation.deployment.rolling_out
    assert simulation.pods.revision.tolist() == [1] * len(simulation.pods)
    assert 4000 <= simulation.measures.closes <= 1.01 * 4000
    assert simulation.linked == 4000


def test_without_the_surge_agents_land_on_old_pods_and_move_again() -> None:
    """What the directive and the surge are for: the same rollout with the defaults of a Deployment."""
    spec = msgspec.structs.replace(SPEC, rolling_update=RollingUpdate(max_surge="25%", max_unavailable="25%"))
    scenario = Scenario("rollout", "", np.full(20 * MINUTE + 1, 4000), rollout_at=2 * MINUTE)
    options = ModelOptions(starts=PodStarts(20, 30), lost_per_day=0)
    simulation = Simulation(scenario, spec, FairleadPolicy(spec), options).run()
    assert simulation.measures.closes > 1.1 * 4000
