"""What the operator is for, on a day's wave that is played in four hours: no hot pod, few moves, all of them at a pace,
and few more pods than an HPA."""

from __future__ import annotations

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Tokens, TokenSecret
from fairlead_operator.simulator.policies import POLICIES
from fairlead_operator.simulator.report import Run
from fairlead_operator.simulator.scenarios.traces import day
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


def played(policy: str) -> Run:
    scenario = day(AGENTS, HOURS * 3600)
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
