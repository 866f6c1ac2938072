"""What holds for the decision on any fleet: bounds, no removal on old numbers, and that a constant load settles."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode, Replicas, Scaling
from fairlead_operator.autoscaler.decision import Action, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation

from support.decisions import PERIOD, SPEC, asks

reporting_pods = st.builds(
    PodObservation,
    name=st.just(""),
    ready=st.booleans(),
    ready_for=st.sampled_from([1.0, 60.0]),
    leaving=st.booleans(),
    age=st.floats(0, 200),
    links=st.integers(0, 3000),
    capacity=st.sampled_from([1000, 1000, 500]),
    commands=st.integers(0, 50),
    refused=st.integers(0, 10_000),
)
silent_pods = st.builds(
    PodObservation,
    name=st.just(""),
    ready=st.booleans(),
    ready_for=st.sampled_from([1.0, 60.0]),
    leaving=st.booleans(),
)
fleets = st.builds(
    FleetObservation,
    replicas=st.integers(1, 30),
    pods=st.lists(reporting_pods | silent_pods, max_size=8).map(
        lambda found: tuple(replace(pod, name=f"p{i}") for i, pod in enumerate(found))
    ),
    readable=st.booleans(),
    rollout=st.booleans(),
)


specs = st.builds(
    lambda low, more, mode, asked, failures: msgspec.structs.replace(
        SPEC,
        replicas=Replicas(min=low, max=low + more),
        scaling=Scaling(mode=mode, replicas=asked, failure_tolerance=failures, window_seconds=60, step_down_seconds=20),
    ),
    st.integers(1, 5), st.integers(0, 20), st.sampled_from(Mode), st.none() | st.integers(1, 40), st.integers(0, 3),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(fleets, min_size=1, max_size=25), specs)
def test_decision_for_any_history_stays_within_bounds_and_removes_only_on_fresh_numbers(
    looks: list[FleetObservation], spec: LinkGatewaySpec
) -> None:
    history = History()
    removed = -math.inf
    for i, observed in enumerate(looks):
        now = i * PERIOD
        decision = decide(observed, history, spec, now)
        history = decision.history
        to, at = decision.replicas, observed.replicas
        assert decision.reason
        if to > at:
            assert decision.action is Action.UP
            assert to <= spec.replicas.max
        if spec.scaling.mode is Mode.EXTERNAL and spec.scaling.replicas is None:
            assert to == at  # somebody else's scale, whatever it is
        else:
            assert to >= spec.replicas.min
        if to < at:
            assert (decision.action, to) == (Action.DOWN, at - 1)
            assert observed.readable
            assert not observed.rollout
            assert all(pod.ready and pod.fresh and not pod.leaving for pod in observed.pods)
            (name,) = decision.victims
            victim = next(pod for pod in observed.pods if pod.name == name)
            assert victim.removal_cost == min(pod.removal_cost for pod in observed.pods)
            assert now - removed >= 20
            removed = now
        assert len(history.wanted) + len(history.links.peaks) + len(history.sizes) <= 3 * len(looks)


@settings(deadline=None)
@given(fleets, st.data())
def test_decision_with_more_links_never_requires_fewer_pods(observed: FleetObservation, data: st.DataObject) -> None:
    more = replace(
        observed,
        pods=tuple(
            pod if math.isinf(pod.age) else replace(pod, links=pod.links + data.draw(st.integers(0, 500)))
            for pod in observed.pods
        ),
    )
    few, many = decide(observed, History(), SPEC, 0.0), decide(more, History(), SPEC, 0.0)
    assert many.required >= few.required
    assert many.replicas >= few.replicas


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 30_000), st.integers(1, 30), specs.filter(lambda spec: spec.scaling.mode is not Mode.EXTERNAL))
def test_decision_for_a_constant_load_settles(links: int, replicas: int, spec: LinkGatewaySpec) -> None:
    """Pods appear and disappear as decided, with evenly spread links: the size moves one way and then stays."""
    history, sizes = History(), [replicas]
    for i in range(400):
        now, size = i * PERIOD, sizes[-1]
        share = [links // size + (1 if n < links % size else 0) for n in range(size)]
        pods = tuple(PodObservation(f"p{n}", age=1.0, links=count, capacity=1000) for n, count in enumerate(share))
        decision = decide(FleetObservation(size, pods), history, spec, now)
        history = decision.history
        sizes.append(decision.replicas)
    steps = [b - a for a, b in itertools.pairwise(sizes) if a != b]
    assert all(step > 0 for step in steps) or all(step < 0 for step in steps)
    assert len(set(sizes[-100:])) == 1
    assert spec.replicas.min <= sizes[-1] <= spec.replicas.max
    final = decide(FleetObservation(sizes[-1], ()), History(), spec, 0.0)
    assert asks(final, "failureTolerance") == spec.scaling.failure_tolerance  # of no links
    needed = max(math.ceil(links / 700), math.ceil(links / 950) + spec.scaling.failure_tolerance)
    assert sizes[-1] >= min(needed, spec.replicas.max)
