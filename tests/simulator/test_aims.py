"""What the operator is for, on a day's wave that is played in four hours: no hot pod, few moves, all of them at a pace,
and few more pods than an HPA; also when a region is cut off and returns, and when all pods are replaced."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.api.moves_spec import Moves
from fairlead_operator.api.pod_spec import RollingUpdate
from fairlead_operator.simulator.policies import POLICIES
from fairlead_operator.simulator.policies.fairlead import FairleadPolicy
from fairlead_operator.simulator.report import Run
from fairlead_operator.simulator.scenarios.scenario import Scenario, Span
from fairlead_operator.simulator.scenarios.traces import TRACES
from fairlead_operator.simulator.simulation import ModelOptions, Simulation

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=2000,
    accept_rate=40,
    replicas=Replicas(max=100),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)


HOURS = 4
AGENTS = 20_000


def played(policy: str, trace: str = "day") -> Run:
    scenario = TRACES[trace](AGENTS, HOURS * 3600)
    return Run.of(scenario, policy, Simulation(scenario, SPEC, POLICIES[policy](SPEC, AGENTS), ModelOptions()).run())


def test_a_day_has_no_hot_pod_and_costs_few_moves_and_little_more_than_with_an_hpa() -> None:
    """Behind a load balancer that chooses at random, the least favourable one that pins no agents."""
    ours, hpa = played("fairlead"), played("hpa")
    assert ours.hot_seconds == 0 < hpa.hot_seconds
    assert ours.pod_hours <= 1.10 * hpa.pod_hours
    moves_in_the_wave = ours.moves_per_agent_day * HOURS / 24
    assert moves_in_the_wave <= 1.5
    assert ours.greatest_closes_per_second <= SPEC.moves.max_per_second < hpa.greatest_closes_per_second
    assert ours.refused == 0
    assert ours.unlinked_share < hpa.unlinked_share


def test_a_region_that_is_cut_off_and_returns_moves_nobody() -> None:
    """Its pods stay, so the day has as many moves and pods as one without the outage."""
    ours, usual = played("fairlead", "region"), played("fairlead")
    assert ours.hot_seconds == 0
    assert ours.refused == 0
    assert ours.moves_per_agent_day <= 1.1 * usual.moves_per_agent_day
    assert ours.pod_hours <= 1.05 * usual.pod_hours
    assert ours.most_pods <= usual.most_pods + 1


@pytest.mark.parametrize("tolerance", [0, 1])
def test_zone_tolerance_keeps_room_for_the_links_of_a_zone_that_fails(tolerance: int) -> None:
    """A constant demand, so that nothing but the failure matters."""
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(zone_tolerance=tolerance))
    scenario = Scenario("zone", "", np.full(1801, AGENTS), zone_down=Span(900, 1500))
    run = Run.of(scenario, "fairlead", Simulation(scenario, spec, FairleadPolicy(spec), ModelOptions()).run())
    assert (run.hot_seconds == 0) == (tolerance == 1)
    assert run.greatest_closes_per_second <= spec.moves.max_per_second


@pytest.mark.parametrize("most", [20, 60, 200])
def test_a_rollout_keeps_to_the_budget_and_moves_each_agent_once(most: int) -> None:
    """As long as it takes: 20,000 agents at 20 per second are 1,000 s."""
    spec = msgspec.structs.replace(SPEC, moves=Moves(max_per_second=most))
    scenario = Scenario("rollout", "", np.full(2000, AGENTS), rollout_at=120)
    simulation = Simulation(scenario, spec, FairleadPolicy(spec), ModelOptions(lost_per_day=0)).run()
    run = Run.of(scenario, "fairlead", simulation)
    assert not simulation.deployment.rolling_out
    assert set(simulation.pods.revision.tolist()) == {1}
    assert 0.99 * AGENTS <= simulation.measures.closes <= 1.05 * AGENTS
    assert run.greatest_closes_per_second <= 2 * most, "a second's worth may have been saved"
    assert run.hot_seconds == run.refused == 0


@pytest.mark.parametrize("surge", [1, "25%"])
def test_a_smaller_surge_makes_a_rollout_slower_and_moves_nobody_twice(surge: int | str) -> None:
    update = RollingUpdate(max_surge=surge)
    spec = msgspec.structs.replace(SPEC, moves=Moves(max_per_second=60), rolling_update=update)
    scenario = Scenario("rollout", "", np.full(4000, AGENTS), rollout_at=120)
    simulation = Simulation(scenario, spec, FairleadPolicy(spec), ModelOptions(lost_per_day=0)).run()
    assert not simulation.deployment.rolling_out
    assert simulation.measures.greatest_closes <= 120
    assert simulation.measures.closes <= 1.1 * AGENTS
    assert simulation.measures.refused == 0
