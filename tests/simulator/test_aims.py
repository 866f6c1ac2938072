"""What the operator is for, on a day's wave of four hours: no hot pod, paced closes, and few more pods than an HPA."""

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


def played(policy: str) -> Run:
    scenario = day(20_000, 4 * 3600)
    return Run.of(scenario, policy, Simulation(scenario, SPEC, POLICIES[policy](SPEC, 20_000), ModelOptions()).run())


def test_a_day_costs_a_tenth_more_than_with_an_hpa_and_closes_links_at_a_pace() -> None:
    ours, hpa = played("fairlead"), played("hpa")
    assert ours.pod_hours <= 1.10 * hpa.pod_hours
    assert ours.greatest_closes_per_second <= 200 < hpa.greatest_closes_per_second
    assert ours.hot_seconds <= hpa.hot_seconds / 10
    assert ours.unlinked_share < hpa.unlinked_share
