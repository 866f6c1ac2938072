"""Every agent is in exactly one state in every second, whatever happens; and a seed repeats a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Tokens, TokenSecret
from fairlead_operator.api.moves_spec import Drain
from fairlead_operator.simulator.fleet.deployment import PodStarts
from fairlead_operator.simulator.fleet.load_balancers import BALANCERS
from fairlead_operator.simulator.policies import POLICIES
from fairlead_operator.simulator.report import Run
from fairlead_operator.simulator.scenarios.scenario import NOWHERE, Scenario, Span
from fairlead_operator.simulator.scenarios.traces import region
from fairlead_operator.simulator.simulation import ModelOptions, Simulation

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=100,
    accept_rate=10,
    replicas=Replicas(min=1, max=8),
    drain=Drain(shutdown_delay_seconds=3),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)
SECONDS = 90


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Up to 900 agents, which are more than all pods can hold, with any combination of events."""
    points = draw(st.lists(st.integers(0, 900), min_size=2, max_size=6).filter(any))
    at = np.linspace(0, SECONDS, len(points))
    demand = np.rint(np.interp(np.arange(SECONDS + 1), at, points)).astype(np.int64)
    moment = st.none() | st.integers(0, SECONDS - 1)
    begin = draw(st.integers(0, SECONDS))
    return Scenario(
        "any",
        "",
        demand,
        rollout_at=draw(moment),
        stuck=draw(st.sampled_from([NOWHERE, Span(begin, SECONDS)])),
        unreadable=draw(st.sampled_from([NOWHERE, Span(begin, SECONDS)])),
        zone_down=draw(st.sampled_from([NOWHERE, Span(begin, begin + 60)])),
    )


@settings(max_examples=60, deadline=None)
@given(
    scenario=scenarios(),
    policy=st.sampled_from(sorted(POLICIES)),
    balancer=st.sampled_from(sorted(BALANCERS)),
    lost_per_day=st.sampled_from([0.0, 1.0, 2000.0]),
    seed=st.integers(0, 2**32),
)
def test_every_agent_is_in_exactly_one_state_in_every_second(
    scenario: Scenario, policy: str, balancer: str, lost_per_day: float, seed: int
) -> None:
    options = ModelOptions(balancer, PodStarts(3, 8), lost_per_day, seed)
    simulation = Simulation(scenario, SPEC, POLICIES[policy](SPEC, scenario.agents), options)
    pods = simulation.pods
    for _ in range(SECONDS):
        simulation.step()
        assert simulation.offline + simulation.waiting + simulation.linked == scenario.agents
        assert simulation.offline == scenario.agents - scenario.demand[simulation.now]
        assert simulation.waiting == simulation.queue.counted() >= 0
        assert pods.links.min(initial=0) >= 0
        assert pods.links.max(initial=0) <= SPEC.capacity
        assert not pods.links[~pods.started].any(), "a pod that starts has no links"
        assert pods.tokens.min(initial=0) >= 0
        assert 0 <= pods.awaited.sum() <= simulation.waiting
        assert simulation.deployment.replicas <= SPEC.replicas.max
    assert simulation.measures.seconds == SECONDS


def figures(seed: int, policy: str) -> Run:
    scenario = replace(region(700, 600), rollout_at=100, zone_down=Span(500, 550))
    options = ModelOptions(starts=PodStarts(3, 8), lost_per_day=200, seed=seed)
    run = Run.of(scenario, policy, Simulation(scenario, SPEC, POLICIES[policy](SPEC, 700), options).run())
    return Run(**{**{name: getattr(run, name) for name in run.__struct_fields__}, "cpu_per_decision_ms": 0,
                  "cpu_longest_decision_ms": 0})  # fmt: skip


def test_a_seed_repeats_a_run_exactly_and_another_seed_does_not() -> None:
    for policy in POLICIES:
        assert figures(1, policy) == figures(1, policy)
        assert figures(1, policy) != figures(2, policy)
