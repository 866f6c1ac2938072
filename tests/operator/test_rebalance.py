"""When links are moved between pods, how many each pod keeps, and when it ends: cases, properties, and a model of nodes
that follow the targets behind several load balancers."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode, Redis, Scaling, Tokens, TokenSecret
from fairlead_operator.api.moves_spec import Rebalance
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.rebalance_history import PAUSE, RebalanceOutcome
from fairlead_operator.autoscaler.link_spread import REACTION
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rebalance import (
    IDLE_ROUNDS,
    IN_VAIN,
    ROUND,
    STEADY,
    RebalancePlan,
    RebalanceState,
    plan_rebalance,
)

from support.moving_fleet import (
    HOUR,
    PASS,
    Choice,
    MovingFleet,
    affinity,
    at_random,
    ignoring_readiness,
    least_connections,
    pinning,
)

SPEC = LinkGatewaySpec(
    image="gateway", capacity=20_000, redis=Redis(url="redis://r"), tokens=Tokens(secret_ref=TokenSecret(name="t"))
)
COUNTS = st.lists(st.integers(0, 30_000), min_size=1, max_size=12)


def fleet(*links: int, **fields: object) -> FleetObservation:
    pods = tuple(PodObservation(f"p{i}", age=1.0, links=n, capacity=20_000) for i, n in enumerate(links))
    return replace(FleetObservation(len(links), pods), **fields)  # type: ignore[arg-type]


def seen(
    observed: FleetObservation, seconds: float = STEADY, history: History | None = None, spec: LinkGatewaySpec = SPEC
) -> list[RebalancePlan]:
    """The plans of passes over a fleet that stays as it is, until `seconds` after the first."""
    plans: list[RebalancePlan] = []
    for i in range(math.ceil(seconds / PASS) + 1):
        plans.append(plan_rebalance(observed, plans[-1].history if plans else history or History(), spec, PASS * i))
    return plans


def running(*links: int) -> History:
    """The history while a rebalance of such a fleet runs."""
    plan = seen(fleet(*links))[-1]
    assert plan.state is RebalanceState.RUNNING
    return plan.history


# -- when it starts, and what it asks for ---------------------------------------------------------------


def test_full_pods_go_down_to_the_mean_once_the_links_have_been_uneven_for_a_while() -> None:
    plans = seen(fleet(5000, 5000, 0, 0))
    assert [plan.state for plan in plans[:-1]] == [RebalanceState.WAITING] * 3
    assert all(not plan.targets for plan in plans[:-1])
    last = plans[-1]
    assert last.started
    full, other = RebalanceTarget(keep=2500, enough=2500), RebalanceTarget(keep=2625)
    assert last.targets == {"p0": full, "p1": full, "p2": other, "p3": other}
    assert last.move_limit == 5000 / 20
    assert last.to_move == 5000
    assert last.reason == "5000 links are to be moved: the fullest of 4 pods has 5000 links, and the mean is 2500"


@pytest.mark.parametrize(
    ("links", "why"),
    [
        ((1000,), "one pod"),
        ((0, 0, 0), "no links"),
        ((1100, 1000, 900), "exactly at the threshold"),
        ((12, 2), "fewer links than minDifference"),
        ((130, 100, 90, 80), "less than what chance explains: three times the root of the mean"),
    ],
)
def test_nothing_is_moved_between_pods_that_are_even_enough(links: tuple[int, ...], why: str) -> None:
    assert {plan.state for plan in seen(fleet(*links), 300)} == {RebalanceState.EVEN}, why


def test_new_pods_are_waited_for_so_that_links_move_once() -> None:
    plans = seen(fleet(6000, 0), 20)
    plans += seen(fleet(6000, 0, 0), 20, plans[-1].history)
    assert not any(plan.targets for plan in plans)
    assert plans[-1].history.rebalance.uneven_since == 0.0  # since the first pass over three pods


def test_pod_that_joins_while_links_are_moved_lowers_the_targets() -> None:
    plan = plan_rebalance(fleet(4000, 1000, 1000, 0), running(6000, 0, 0), SPEC, 60.0)
    assert plan.targets["p0"] == RebalanceTarget(1500, 1500)
    assert plan.run is not None
    assert plan.run.idle_rounds == 0


def test_ends_when_no_pod_is_far_above_the_mean() -> None:
    plan = plan_rebalance(fleet(2600, 2560, 2430, 2410), running(5000, 5000, 0, 0), SPEC, 60.0)
    assert plan.ended is not None
    assert (plan.ended.outcome, plan.state, plan.targets) == (RebalanceOutcome.EVEN, RebalanceState.EVEN, {})


OBSTACLES: dict[str, tuple[dict[str, object], str]] = {
    "rollout": ({"rollout": True}, "a rollout is in progress"),
    "operation": ({"operation": "node-7"}, "the LinkOperation node-7 is running"),
    "unreadable": ({"readable": False}, "Redis cannot be read"),
}


@pytest.mark.parametrize(("fields", "why"), OBSTACLES.values(), ids=OBSTACLES)
def test_nothing_is_moved_while_the_fleet_changes(fields: dict[str, object], why: str) -> None:
    uneven = fleet(5000, 0, **fields)
    assert not any(plan.targets for plan in seen(uneven, 300))
    interrupted = plan_rebalance(uneven, running(5000, 0), SPEC, 60.0)
    assert interrupted.ended is not None
    assert interrupted.ended.outcome is RebalanceOutcome.INTERRUPTED
    assert interrupted.reason == f"no links are moved: {why}"


@pytest.mark.parametrize("change", [{"leaving": True}, {"age": 16.0}, {"age": math.inf}], ids=str)
def test_nothing_is_moved_while_a_pod_leaves_or_is_silent(change: dict[str, object]) -> None:
    uneven = fleet(5000, 0, 0)
    changed = replace(uneven, pods=(*uneven.pods[:2], replace(uneven.pods[2], **change)))  # type: ignore[arg-type]
    assert not any(plan.targets for plan in seen(changed, 300))
    assert not plan_rebalance(changed, running(5000, 0, 0), SPEC, 60.0).targets


def test_nothing_is_moved_while_the_fleet_is_short_of_pods_or_full_or_about_to_lose_one() -> None:
    uneven = fleet(5000, 0)
    history = seen(uneven)[-1].history
    assert not plan_rebalance(uneven, replace(history, short_of_pods=True), SPEC, 60.0).targets
    assert not plan_rebalance(uneven, replace(history, removed_at=50.0), SPEC, 60.0).targets
    refusing = replace(history, links=replace(history.links, rejecting_since=0.0))
    full = fleet(20_000, 18_500)
    assert not any(plan.targets for plan in seen(full, 300, refusing))
    # A full pod beside empty ones refuses links as well, and only moving them helps.
    assert plan_rebalance(uneven, refusing, SPEC, 60.0).targets


@pytest.mark.parametrize("spec", [{"rebalance": Rebalance(enabled=False)}, {"scaling": Scaling(mode=Mode.PAUSED)}])
def test_nothing_is_moved_when_the_spec_forbids_it(spec: dict[str, object]) -> None:
    assert not any(plan.targets for plan in seen(fleet(5000, 0), 300, spec=msgspec.structs.replace(SPEC, **spec)))


def test_an_operation_starts_one_whatever_the_thresholds_and_the_pause() -> None:
    asked = fleet(108, 92, operation="now", rebalance_operation="uid-1")
    plan = plan_rebalance(asked, History(), msgspec.structs.replace(SPEC, rebalance=Rebalance(enabled=False)), 0.0)
    assert plan.started
    assert plan.targets == {"p0": RebalanceTarget(100, 100), "p1": RebalanceTarget(105)}
    even = plan_rebalance(fleet(101, 99, rebalance_operation="uid-1"), plan.history, SPEC, 10.0)
    assert even.ended is not None
    assert (even.ended.outcome, even.ended.operation) == (RebalanceOutcome.EVEN, "uid-1")


def test_an_operation_is_not_over_on_reports_from_before_it_began() -> None:
    """400 agents have connected to the first pod since its report."""
    plan = plan_rebalance(fleet(0, 0, rebalance_operation="uid-1"), History(), SPEC, 0.0)
    assert plan.ended is None
    assert not plan.targets
    assert plan_rebalance(fleet(400, 0, rebalance_operation="uid-1"), plan.history, SPEC, 10.0).targets
    assert plan_rebalance(fleet(0, 0, rebalance_operation="uid-1"), plan.history, SPEC, 10.0).ended is not None


def test_rebalance_of_an_operation_that_was_cancelled_ends() -> None:
    plan = plan_rebalance(fleet(5000, 0, rebalance_operation="uid-1"), History(), SPEC, 0.0)
    assert plan.targets
    plan = plan_rebalance(fleet(5000, 0), plan.history, SPEC, 10.0)
    assert plan.ended is not None
    assert plan.ended.outcome is RebalanceOutcome.INTERRUPTED
    assert not plan.targets


# -- properties -----------------------------------------------------------------------------------------


@given(COUNTS)
def test_targets_hold_all_links_and_no_pod_goes_below_the_mean(links: list[int]) -> None:
    targets = seen(fleet(*links))[-1].targets
    if targets:
        kept = [target.keep for target in targets.values()]
        assert sum(kept) >= sum(links)
        assert min(kept) >= sum(links) / len(links)
        assert targets.keys() == {f"p{i}" for i in range(len(links))}


@given(COUNTS, st.just(0) | st.integers(IN_VAIN, 500))
def test_every_rebalance_of_links_that_do_not_move_ends(links: list[int], moves_per_pass: int) -> None:
    """Whatever nodes say that they moved: the links stay where they are."""
    history, ended = History(), None
    for i in range(int((STEADY + IDLE_ROUNDS * ROUND) / PASS) + 1):
        observed = fleet(*links)
        pods = tuple(replace(pod, moved=i * moves_per_pass) for pod in observed.pods)
        plan = plan_rebalance(replace(observed, pods=pods), history, SPEC, PASS * i)
        history, ended = plan.history, plan.ended
    assert history.rebalance.run is None
    if ended is not None:
        pinned = moves_per_pass > 0
        expected = RebalanceOutcome.LOAD_BALANCER_PINS if pinned else RebalanceOutcome.NOTHING_TO_MOVE
        assert ended.outcome is expected


@given(st.lists(st.lists(st.integers(0, 3000), min_size=4, max_size=4), min_size=20, max_size=60))
def test_every_rebalance_ends_whatever_the_links_do(passes: list[list[int]]) -> None:
    """Rounds that make progress lower the least surplus, so there are not more of them than links."""
    history = History()
    run_rounds: list[int] = []
    for i, links in enumerate(passes):
        plan = plan_rebalance(fleet(*links), history, SPEC, PASS * i)
        history = plan.history
        if plan.run is None:
            run_rounds.clear()
        elif plan.run.idle_rounds == 0 and (not run_rounds or plan.run.least != run_rounds[-1]):
            run_rounds.append(plan.run.least)
        assert all(later < earlier for earlier, later in pairwise(run_rounds))
        assert plan.run is None or plan.run.idle_rounds < IDLE_ROUNDS


@given(st.lists(st.integers(1051, 1099), min_size=10, max_size=60))
def test_nothing_starts_or_ends_between_the_thresholds(fullest: list[int]) -> None:
    def between(full: int) -> FleetObservation:
        return fleet(full * 10, *(((4000 - full) * 10) // 3,) * 3)

    history, running_on = History(), running(40_000, 0, 0, 0)
    for i, full in enumerate(fullest):
        observed = between(full)
        plan = plan_rebalance(observed, history, SPEC, PASS * i)
        history = plan.history
        assert (plan.state, plan.started) == (RebalanceState.EVEN, False)
        other = plan_rebalance(observed, running_on, SPEC, STEADY + PASS)  # one pass later: within the round
        assert other.state is RebalanceState.RUNNING


@given(COUNTS, st.sampled_from([*OBSTACLES, "leaving", "silent"]), st.integers(0, 11))
def test_never_while_the_fleet_changes(links: list[int], obstacle: str, which: int) -> None:
    if obstacle in OBSTACLES:
        observed = fleet(*links, **OBSTACLES[obstacle][0])
    else:
        observed = fleet(*links)
        one = observed.pods[which % len(links)]
        changed = replace(one, leaving=True) if obstacle == "leaving" else replace(one, age=20.0)
        observed = replace(observed, pods=tuple(changed if pod is one else pod for pod in observed.pods))
    for history in (History(), seen(fleet(*links))[-1].history):
        plans = seen(observed, 120, history)
        assert not any(plan.targets or plan.started for plan in plans)


@given(COUNTS, st.integers(0, 3), st.integers(1, 2000))
def test_some_pods_take_new_links_whatever_happens_and_have_room(
    links: list[int], failures: int, accept_rate: int
) -> None:
    """Those that have few, at least one; room for what the fullest pods may lose before the others take links again."""
    scaling = Scaling(failure_tolerance=failures)
    spec = msgspec.structs.replace(SPEC, scaling=scaling, accept_rate=accept_rate)
    targets = seen(fleet(*links), spec=spec)[-1].targets
    if not targets:
        return
    kept = {name for name, target in targets.items() if target.enough is not None}
    takers = {n for n in range(len(links)) if f"p{n}" not in kept}
    assert takers
    assert max(links[n] for n in takers) <= min((links[n] for n in range(len(links)) if n not in takers), default=99999)
    if kept:
        room = sum(0.95 * 20_000 - links[n] for n in takers)
        assert room >= min(sum(sorted(links)[-failures:] if failures else ()), accept_rate * REACTION)
    assert {targets[name].enough for name in kept} <= {math.ceil(sum(links) / len(links))}


def test_all_pods_take_new_links_while_one_that_should_refuses_some() -> None:
    def plan(now: float, before: History, *refused: int) -> RebalancePlan:
        observed = fleet(5000, 5000, 0, 0)
        pods = tuple(replace(pod, refused=count) for pod, count in zip(observed.pods, refused, strict=True))
        return plan_rebalance(replace(observed, pods=pods), before, SPEC, now)

    def excluded(plan: RebalancePlan) -> list[str]:
        return [name for name, target in plan.targets.items() if target.enough is not None]

    first = plan(40, running(5000, 5000, 0, 0), 7, 7, 0, 0)
    assert excluded(first) == ["p0", "p1"], "donors are full: that they refuse links is why they are relieved"
    refused = plan(50, first.history, 9, 9, 0, 1)
    assert refused.targets["p0"].keep == 2500
    assert not excluded(refused)
    again = plan(60, refused.history, 9, 9, 0, 1)
    assert not excluded(again)
    assert excluded(plan(80, again.history, 9, 9, 0, 1)) == ["p0", "p1"]


# -- nodes that follow the targets ------------------------------------------------------------------------


@pytest.mark.parametrize("choose", [at_random, least_connections])
@pytest.mark.parametrize("links", [(5000, 5000, 0, 0), (10_000, 0), (3000, 3000, 3000, 1000)])
def test_links_are_even_within_ten_minutes(choose: Choice, links: tuple[int, ...]) -> None:
    moving_fleet = MovingFleet(links, choose, SPEC)
    moving_fleet.run(600)
    assert moving_fleet.max_over_mean <= 1.10
    assert moving_fleet.plans[-1].state is RebalanceState.EVEN
    assert most_moves_in_an_hour(moving_fleet) <= 1


@pytest.mark.parametrize("choose", [at_random, least_connections, affinity])
@pytest.mark.parametrize("links", [(5000, 5000, 0, 0), (7000,) * 8 + (0,), (3800, 3800, 2300, 0)], ids=len)
def test_hardly_a_move_is_wasted_whatever_the_load_balancer_does(choose: Choice, links: tuple[int, ...]) -> None:
    """Pods that have enough are out of their Services, so agents land on those that have few."""
    moving_fleet = MovingFleet(links, choose, SPEC)
    moving_fleet.run(600)
    assert moving_fleet.max_over_mean <= 1.06
    assert found(moving_fleet) is None
    mean = sum(links) / len(links)
    needed = sum(max(0, count - mean) for count in links)
    assert sum(moving_fleet.moved.values()) <= 1.1 * needed


def test_load_balancer_that_ignores_readiness_needs_more_moves_and_ends_even() -> None:
    moving_fleet = MovingFleet((5000, 5000, 0, 0), ignoring_readiness, SPEC)
    moving_fleet.run(600)
    assert moving_fleet.max_over_mean <= 1.10
    assert sum(moving_fleet.moved.values()) > 1.3 * 5000


def test_agents_in_commands_stay_and_the_others_are_moved() -> None:
    moving_fleet = MovingFleet((4000, 0), least_connections, SPEC, busy=0.4)
    moving_fleet.run(600)
    assert moving_fleet.max_over_mean <= 1.10
    assert not any(agent.moves for agent in moving_fleet.agents if agent.busy)


def test_when_all_agents_are_in_commands_it_gives_up_and_says_so() -> None:
    moving_fleet = MovingFleet((4000, 0), least_connections, SPEC, busy=1.0)
    moving_fleet.run(300)
    assert found(moving_fleet) is RebalanceOutcome.NOTHING_TO_MOVE
    assert moving_fleet.plans[-1].state is RebalanceState.STOPPED


def test_load_balancer_that_pins_is_detected_and_left_alone() -> None:
    moving_fleet = MovingFleet((5000, 5000, 0, 0), pinning, SPEC)
    moving_fleet.run(300)
    last = moving_fleet.plans[-1]
    assert (last.state, found(moving_fleet)) == (RebalanceState.STOPPED, RebalanceOutcome.LOAD_BALANCER_PINS)
    assert "came back to the pods that they had left" in last.reason
    (ended,) = (plan for plan in moving_fleet.plans if plan.ended)
    moved = sum(moving_fleet.moved.values())
    moving_fleet.run(int(PAUSE) - 300)
    assert sum(moving_fleet.moved.values()) == moved
    moving_fleet.run(600)  # it tries again; nothing may be moved within the hour, so what was found stands
    assert found(moving_fleet) is RebalanceOutcome.LOAD_BALANCER_PINS
    moving_fleet.run(int(HOUR))
    assert most_moves_in_an_hour(moving_fleet) <= 1
    assert ended.ended is not None
    assert ended.ended.moved == moved


def test_a_few_links_that_come_back_do_not_blame_the_load_balancer() -> None:
    """As after a rebalance: nearly all links were moved within the last hour, and may not be moved again."""
    history = History()
    for i in range(int((STEADY + IDLE_ROUNDS * ROUND) / PASS) + 1):
        observed = fleet(85, 60, 55, 0)
        pods = tuple(replace(pod, moved=min(i, 2)) for pod in observed.pods)
        plan = plan_rebalance(replace(observed, pods=pods), history, SPEC, PASS * i)
        history = plan.history
    assert plan.ended is not None
    assert plan.ended.outcome is RebalanceOutcome.NOTHING_TO_MOVE
    assert "within the last hour" in plan.reason


def test_what_was_found_of_a_load_balancer_is_forgotten_once_links_spread() -> None:
    moving_fleet = MovingFleet((2000, 0), pinning, SPEC)
    moving_fleet.run(300)
    assert found(moving_fleet) is RebalanceOutcome.LOAD_BALANCER_PINS
    moving_fleet.choose = least_connections
    moving_fleet.run(2 * int(HOUR))
    assert (moving_fleet.plans[-1].state, found(moving_fleet)) == (RebalanceState.EVEN, None)
    assert moving_fleet.max_over_mean <= 1.10


def most_moves_in_an_hour(moving_fleet: MovingFleet) -> int:
    return max(
        (sum(at <= other < at + HOUR for other in agent.moves) for agent in moving_fleet.agents for at in agent.moves),
        default=0,
    )


def found(moving_fleet: MovingFleet) -> RebalanceOutcome | None:
    """What the last rebalance that gave up has found."""
    given_up = moving_fleet.plans[-1].given_up
    return None if given_up is None else given_up.outcome
