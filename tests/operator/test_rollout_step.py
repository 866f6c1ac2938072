"""How far a rollout goes in each pass, without a cluster: new pods that are made, and old ones that terminate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Unpack

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fleet.directives.exclusion import SETTLE
from fairlead.fleet.moves.move_rate import FINAL_SECONDS
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.decision import decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rollout import LinkDirection, RolloutHistory, direct_links
from fairlead_operator.autoscaler.rollout_step import NOT_PACED, RolloutStep, is_paced, plan_step, surge_of

from support.decisions import PodFields

NOW = 100.0
DIRECTED = LinkDirection("new", "")
SETTLED = RolloutHistory("new", directed_since=NOW - SETTLE)


def spec(**more: object) -> LinkGatewaySpec:
    """A pod of 10,000 links has 160 s for its drain: the budget moves 20,000 links before the last minute."""
    given = {"image": "g", "redis": {"url": "redis://r"}, "tokens": {"secretRef": {"name": "t"}}, **more}
    return msgspec.convert(given, LinkGatewaySpec)


SPEC = spec()


def pods(revision: str, *links: int, **more: Unpack[PodFields]) -> list[PodObservation]:
    one = PodObservation("", age=1.0, capacity=10_000, revision=revision, spare_accept_rate=200.0)
    one = replace(one, **more)
    return [replace(one, name=f"{revision}-{n}", links=count) for n, count in enumerate(links)]


def fleet(replicas: int, *found: list[PodObservation], **more: Any) -> FleetObservation:
    every = tuple(replace(pod, name=f"p{n}") for n, pod in enumerate(pod for some in found for pod in some))
    return FleetObservation(replicas, every, **{"rollout": True, "revision": "new", **more})


def step(
    seen: FleetObservation,
    asked: LinkGatewaySpec = SPEC,
    *,
    direction: LinkDirection = DIRECTED,
    history: RolloutHistory = SETTLED,
    rate: float = 200.0,
    before: RolloutStep = NOT_PACED,
) -> RolloutStep:
    return plan_step(seen, direction, history, asked, rate, NOW, before)


OLD = [7000] * 10


def test_a_rollout_whose_links_fit_into_the_budget_is_left_to_the_deployment() -> None:
    assert step(fleet(3, pods("old", 7000, 7000, 6000), pods("new", 0, 0, 0))) == NOT_PACED
    assert step(fleet(3, pods("old", 7000, 7000, 6001), pods("new", 0, 0, 0))).paced


def test_as_many_pods_go_as_the_budget_empties_before_their_last_minute() -> None:
    found = step(fleet(10, pods("old", *OLD), pods("new", 0, 0, 0, 0, 0)))
    assert (found.ahead, found.going, found.left) == (5, 2, 8), "200 × 160 s fill five, 200 × 100 s empty two"
    assert found.reason.startswith("10 pods of old templates are left, and 2 may terminate now: 0 links are moving")


@pytest.mark.parametrize(("left", "going"), [(14_000, 0), (13_001, 0), (13_000, 1), (6_001, 1), (6_000, 2)])
def test_the_next_ones_go_when_the_last_ones_have_moved_enough(left: int, going: int) -> None:
    found = step(fleet(10, pods("old", *OLD[2:]), pods("old", left, leaving=True), pods("new", *[0] * 7)))
    assert found.going == going


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (fleet(10, pods("old", *OLD), pods("new", 0, 0, 0, 0, ready_for=29.0)), "0 pods of the new one have"),
        (fleet(10, pods("old", *OLD), pods("new", 0, 0, 0, 0, ready=False)), "0 pods of the new one have"),
        (fleet(10, pods("old", *OLD[1:]), pods("new", 7000, 5000), pods("old", 7000, leaving=True)), "no room"),
        (fleet(10, pods("old", *OLD[1:]), pods("old", 7000, leaving=True), pods("new", 0, 0, 0)), "budget is 50"),
    ],
)  # fmt: skip
def test_no_old_pod_goes(seen: FleetObservation, reason: str) -> None:
    found = step(seen, rate=50.0 if "50" in reason else 200.0)
    assert (found.paced, found.going) == (True, 0)
    assert reason in found.reason


@pytest.mark.parametrize("history", [RolloutHistory("new"), replace(SETTLED, directed_since=NOW - 1)])
def test_no_old_pod_goes_before_new_links_go_to_new_pods(history: RolloutHistory) -> None:
    seen = fleet(10, pods("old", *OLD), pods("new", 0, 0, 0, 0, 0))
    assert step(seen, history=history).going == 0
    assert step(seen, direction=LinkDirection("", "pods refuse links")).going == 0


def test_more_new_pods_are_made_when_those_that_there_are_fill_by_themselves() -> None:
    """Agents that connect for reasons of their own land on new pods too, and leave the old ones emptier."""
    seen = fleet(10, pods("old", *[6000] * 10), pods("new", 7000, 3000, 0, 0, 0))
    assert step(seen, before=RolloutStep(True, 5)).ahead == 7
    limited = spec(rollingUpdate={"maxSurge": 4})
    assert step(seen, limited, before=RolloutStep(True, 4)).ahead == 4


def test_a_rollout_stands_still_while_nobody_knows_the_links() -> None:
    before = RolloutStep(True, 5, 2, 8)
    for unknown in ({"readable": False}, {"revision": ""}):
        found = step(fleet(10, pods("old", *OLD), pods("new", 0, 0, 0, 0, 0), **unknown), before=before)
        assert (found.paced, found.ahead, found.going) == (True, 5, 0)


def test_a_pod_with_more_links_than_the_budget_moves_in_its_time_goes_alone_and_is_reported() -> None:
    found = step(fleet(10, pods("old", *OLD), pods("new", 0, 0, 0, 0, 0)), rate=20.0)
    assert found.going == 1
    assert found.problem == (
        "an old pod has 7000 links, and the budget of 20 moves per second empties one of at most 2000 in the 100 s "
        "before the last minute of a drain: what is left then moves faster (raise moves.maxPerSecond, or give the new "
        "pods more CPU or a greater acceptRate)"
    )


def test_without_a_surge_the_deployment_goes_its_own_steps() -> None:
    found = spec(rollingUpdate={"maxSurge": 0, "maxUnavailable": "25%"})
    assert step(fleet(10, pods("old", *OLD)), found) == NOT_PACED


@pytest.mark.parametrize(
    ("surge", "unavailable", "expected"),
    [("25%", "25%", (3, 2)), (0, "0%", (0, 1)), ("100%", 0, (10, 0)), (2, 1, (2, 1))],
)
def test_limits_in_pods_are_rounded_as_kubernetes_does(
    surge: int | str, unavailable: int | str, expected: tuple[int, int]
) -> None:
    update = spec(rollingUpdate={"maxSurge": surge, "maxUnavailable": unavailable}).rolling_update
    assert surge_of(update, 10) == expected


some_pods = st.lists(
    st.builds(
        PodObservation,
        name=st.just(""),
        ready=st.sampled_from([True, True, False]),
        ready_for=st.sampled_from([0.0, 29.0, 31.0, 3600.0]),
        leaving=st.sampled_from([False, False, True]),
        age=st.sampled_from([1.0, 1.0, 60.0]),
        links=st.integers(0, 10_000),
        capacity=st.just(10_000),
        refused=st.integers(0, 1),
        spare_accept_rate=st.floats(0, 200),
        excluded_by=st.sampled_from(["", "", "rebalance", "rollout"]),
        revision=st.sampled_from(["old", "older", "new", "new"]),
    ),
    max_size=40,
)
surges = st.sampled_from(
    [{}, {"maxSurge": 1}, {"maxSurge": "25%", "maxUnavailable": "25%"}, {"maxSurge": 0, "maxUnavailable": 2}]
)


@settings(deadline=None, max_examples=300)
@given(
    seen=st.builds(
        lambda replicas, found, rollout, canary, readable: fleet(
            replicas, found, rollout=rollout, canary=canary, readable=readable
        ),
        st.integers(1, 30), some_pods, st.booleans(), st.sampled_from([False, False, True]),
        st.sampled_from([True, True, False]),
    ),
    rate=st.floats(0, 400),
    update=surges,
)  # fmt: skip
def test_a_step_never_overdraws_the_budget_nor_takes_pods_that_are_needed(
    seen: FleetObservation, rate: float, update: dict[str, Any]
) -> None:
    asked = spec(rollingUpdate=update)
    inputs = decide(seen, History(), asked, NOW).inputs
    direction = direct_links(seen, inputs, SETTLED, asked, NOW, paced=is_paced(seen, asked))
    found = step(seen, asked, direction=direction, rate=rate)
    surge, unavailable = surge_of(asked.rolling_update, seen.replicas)
    if found.paced:
        assert 1 <= found.ahead <= surge or not seen.readable
    if not found.going:
        return
    assert (found.paced, seen.rollout, seen.readable, seen.canary) == (True, True, True, False)
    assert direction.revision == "new"
    old = [pod for pod in seen.pods if pod.revision != "new" and not pod.leaving]
    assert found.going + found.left == len(old)
    new = [pod for pod in seen.fresh_pods if pod.revision == "new" and pod.ready and not pod.leaving]
    assert found.left + sum(pod.ready_for >= 30 for pod in new) >= seen.replicas - unavailable
    moving = sum(pod.links for pod in seen.fresh_pods if pod.leaving)
    fullest = max(pod.links for pod in old)
    if found.going > 1 and fullest:
        assert moving + found.going * fullest <= rate * (asked.drain_seconds - FINAL_SECONDS)
        share = math.ceil(sum(pod.links for pod in seen.fresh_pods) / seen.replicas)
        assert moving + found.going * fullest <= sum(max(0, share - pod.links) for pod in new)


@settings(deadline=None, max_examples=300)
@given(seen=st.builds(fleet, st.integers(1, 30), some_pods))
def test_new_links_in_a_rollout_in_steps_always_have_a_pod_that_takes_them(seen: FleetObservation) -> None:
    if not is_paced(seen, SPEC):
        return
    inputs = decide(seen, History(), SPEC, NOW).inputs
    direction = direct_links(seen, inputs, SETTLED, SPEC, NOW, paced=True)
    if not direction.revision:
        assert not direction.targets
        return
    takers = [
        pod for pod in seen.fresh_pods
        if pod.revision == "new" and pod.ready and not pod.leaving and pod.name not in direction.targets
    ]  # fmt: skip
    assert sum(0.95 * pod.capacity - pod.links for pod in takers) > 0
    now = [pod for pod in seen.fresh_pods if pod.revision == "new" and pod.takes_links]
    assert not now or any(pod in now for pod in takers), "one takes new links at every moment"
