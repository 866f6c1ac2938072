"""The decision: a table of cases, and properties that hold for any fleet."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.autoscaler.decision import Action, Decision, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.link_history import LOST_SECONDS
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.scale_down import deletion_costs

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    accept_rate=100,
    replicas=Replicas(min=2, max=20),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)
PERIOD = 10.0
WINDOW = LOST_SECONDS
WINDOWED = Scaling(window_seconds=600)


def asks(decision: Decision, rule: str) -> int:
    """Pods that the rule requires."""
    return {one.name: one.replicas for one in decision.rules}[rule]


def fleet(*links: int, replicas: int | None = None, rollout: bool = False, readable: bool = True) -> FleetObservation:
    """Pods that have just reported these links."""
    pods = tuple(PodObservation(f"p{i}", age=1.0, links=n, capacity=1000) for i, n in enumerate(links))
    return FleetObservation(len(links) if replicas is None else replicas, pods, readable, rollout)


def watched(
    observed: FleetObservation, spec: LinkGatewaySpec = SPEC, seconds: float = WINDOW, history: History | None = None
) -> Decision:
    """The decision after the fleet has been as `observed` for `seconds`, without any action."""
    history = history or History()
    begin = history.links.observed_at + PERIOD
    looks = math.ceil(seconds / PERIOD)
    for i in range(looks):
        history = replace(decide(observed, history, spec, begin + i * PERIOD).history, removed_at=history.removed_at)
    return decide(observed, history, spec, begin + looks * PERIOD)


@pytest.mark.parametrize(
    ("links", "replicas", "winner"),
    [
        ((), 2, "min"),
        ((0, 0), 2, "min"),
        ((700, 700), 3, "failureTolerance"),  # 1,400 at 95 % fill two pods, and one may die
        ((1000, 1000, 1000, 1000, 1000), 8, "utilisation"),  # 5,000 at 70 %
        ((1000,) * 15, 20, "max"),
    ],
)
def test_decision_follows_the_rule_that_requires_the_most(links: tuple[int, ...], replicas: int, winner: str) -> None:
    decision = decide(fleet(*links, replicas=max(1, len(links))), History(), SPEC, 0.0)
    assert (decision.replicas, decision.target.winner) == (replicas, winner)
    assert decision.action is (Action.STAY if replicas == len(links) else Action.UP)
    assert decision.limited is (winner == "max")


def test_decision_follows_the_rule_reconnect_when_pods_accept_slowly() -> None:
    spec = msgspec.structs.replace(SPEC, accept_rate=1, scaling=Scaling(reconnect_seconds=100))
    assert (decision := decide(fleet(500, 500), History(), spec, 0.0)).target.winner == "reconnect"
    assert asks(decision, "reconnect") == 10


def test_growth_adds_pods_before_its_links_arrive() -> None:
    history = decide(fleet(500, 500), History(), SPEC, 0.0).history
    still = decide(fleet(500, 500), history, SPEC, PERIOD)
    grown = decide(fleet(700, 700), history, SPEC, PERIOD)
    assert grown.inputs.growth == pytest.approx(40 * (1 - math.exp(-PERIOD / 30)))
    assert asks(grown, "utilisation") == math.ceil(1400 / 700), "it may have been a burst"
    again = decide(fleet(900, 900), grown.history, SPEC, 2 * PERIOD)
    assert again.inputs.growing_seconds == PERIOD
    assert asks(again, "utilisation") == math.ceil((1800 + again.inputs.growth * PERIOD / 2) / 700) > 1800 / 700
    assert still.inputs.growth == 0


@pytest.mark.parametrize("phase", [0.0, 2.5, 4.9])
@pytest.mark.parametrize("lead", [15, 30])
def test_agents_that_connect_all_at_once_to_a_new_fleet_require_no_second_pod(phase: float, lead: int) -> None:
    """2,000 agents come at 100 a second. The one pod takes 2,800 at its target, and reports every 5 s."""
    scaling = Scaling(failure_tolerance=0, lead_seconds=lead)
    spec = msgspec.structs.replace(SPEC, capacity=4000, replicas=Replicas(min=1, max=20), scaling=scaling)
    history, wanted = History(), set()
    for now in range(0, 120, int(PERIOD)):
        reported = now - (now - phase) % 5.0
        links = round(100 * min(max(reported, 0.0), 20.0))
        pod = PodObservation("p0", age=now - reported, links=links, capacity=4000)
        decision = decide(FleetObservation(1, (pod,)), history, spec, float(now))
        history = decision.history
        wanted.add(decision.target.replicas)
    assert decision.inputs.links == 2000
    assert wanted == {1}


def test_growth_that_lasts_is_extrapolated_over_the_whole_lead_time_and_one_that_ends_no_more() -> None:
    history, now = History(), 0.0
    for links in range(0, 1000, 100):
        decision = decide(fleet(links, links), history, SPEC, now)
        history, now = decision.history, now + PERIOD
    growing = decision.inputs
    assert growing.growing_seconds >= 2 * growing.lead_seconds
    assert asks(decision, "utilisation") == math.ceil((growing.links + growing.growth * growing.lead_seconds) / 700)
    for _ in range(2):
        decision = decide(fleet(900, 900), history, SPEC, now)
        history, now = decision.history, now + PERIOD
    assert decision.inputs.growth > 0
    assert decision.inputs.growing_seconds == 0
    assert asks(decision, "utilisation") == math.ceil(1800 / 700)


def test_lead_time_is_measured_from_the_starts_of_pods() -> None:
    here = fleet(10, 10).pods
    history, leads = History(), []
    for i in range(8):
        new = () if i < 2 else (PodObservation("new", ready=i >= 5),)
        decision = decide(FleetObservation(3, (*here, *new)), history, SPEC, i * PERIOD)
        history = decision.history
        leads.append(decision.inputs.lead_seconds)
    assert leads == [30] * 5 + [40] * 3  # seen at 20 s, ready at 50 s, and 10 s
    ill = decide(FleetObservation(3, (*here, PodObservation("new", ready=False))), history, SPEC, 80.0)
    well = decide(FleetObservation(3, (*here, PodObservation("new"))), ill.history, SPEC, 400.0)
    assert well.inputs.lead_seconds == 40  # it had been ready before
    late = decide(FleetObservation(4, (*here, PodObservation("slow", ready=False))), well.history, SPEC, 410.0)
    there = decide(FleetObservation(4, (*here, PodObservation("slow"))), late.history, SPEC, 4010.0)
    assert there.inputs.lead_seconds == 300


def test_refused_links_require_pods_and_then_lift_the_step_limit() -> None:
    def full(refused: int) -> FleetObservation:
        return FleetObservation(
            2, tuple(PodObservation(f"p{i}", age=1.0, links=1000, capacity=1000, refused=refused) for i in range(2))
        )

    spec = msgspec.structs.replace(SPEC, replicas=Replicas(min=2, max=100))
    history = decide(full(0), History(), spec, 0.0).history
    replicas = []
    for i in range(1, 6):
        decision = decide(full(i * 10_000), history, spec, i * PERIOD)
        history = decision.history
        replicas.append(decision.replicas)
        assert decision.inputs.rejects > 0
    # The Deployment was never scaled here, so the limit stays at that of two pods.
    assert replicas == [6] * 5
    assert history.links.rejecting_since == PERIOD


def test_scale_down_waits_while_links_are_refused() -> None:
    def busy(refused: int) -> FleetObservation:
        return FleetObservation(
            4, tuple(PodObservation(f"p{i}", age=1.0, links=50, capacity=1000, refused=refused) for i in range(4))
        )

    history = History()
    for i in range(70):
        decision = decide(busy(i), history, SPEC, i * PERIOD)
        history = decision.history
        assert decision.replicas == 4
    assert decision.reason == "2 pods would suffice, but links are being refused"
    calm = decide(busy(69), history, SPEC, 70 * PERIOD)
    assert calm.action is Action.DOWN


def test_negative_growth_does_not_reduce_the_required_pods() -> None:
    history = History()
    for i in range(30):
        decision = decide(fleet(3000 - 100 * i, 3000 - 100 * i), history, SPEC, i * PERIOD)
        history = decision.history
    assert decision.inputs.growth < -15
    assert asks(decision, "utilisation") == math.ceil(decision.inputs.links / 700)


def test_scale_up_at_most_doubles_within_a_minute() -> None:
    many = tuple(PodObservation(f"p{i}", age=1.0, links=950, capacity=1000) for i in range(10))
    first = decide(FleetObservation(10, many), History(), SPEC, 0.0)
    assert (first.replicas, first.limited) == (14, False)
    # More links at once: the fleet may double within a minute, counted from its least size of that minute.
    spec = msgspec.structs.replace(SPEC, replicas=Replicas(min=2, max=500))
    more = tuple(PodObservation(f"p{i}", age=1.0, links=5000, capacity=1000) for i in range(14))
    without_growth = replace(first.history, links=replace(first.history.links, growth=0.0))
    again = decide(FleetObservation(14, more[:14]), without_growth, spec, PERIOD)
    assert again.replicas == 28  # a need of twice what is ready lifts the limit: it counts from now
    fuller = many + tuple(PodObservation(f"q{i}", age=1.0, links=1150, capacity=1000) for i in range(4))
    calm = decide(FleetObservation(14, fuller), first.history, spec, PERIOD)
    assert (calm.target.replicas, calm.replicas) == (21, 20)  # from 10 a minute ago


def test_scale_down_waits_for_the_window_and_removes_one_pod() -> None:
    observed = fleet(100, 50, 100, 100)
    early = watched(observed, seconds=WINDOW - 2 * PERIOD)
    assert early.action is Action.STAY
    assert "watched" in early.reason
    late = watched(observed)
    assert (late.action, late.replicas, late.victims) == (Action.DOWN, 3, ("p1",))
    soon = decide(fleet(100, 150, 100), late.history, SPEC, late.history.links.observed_at + PERIOD)
    assert soon.action is Action.STAY
    assert "last removal was 10 s ago" in soon.reason


def test_scale_down_waits_for_the_window_after_a_peak() -> None:
    spec = msgspec.structs.replace(SPEC, scaling=WINDOWED)
    history = watched(fleet(100, 100, 100, 100), spec, seconds=300).history
    history = decide(fleet(900, 900, 900, 900), history, spec, history.links.observed_at + PERIOD).history
    decision = watched(fleet(100, 100, 100, 100), spec, seconds=WINDOW - 2 * PERIOD, history=history)
    assert decision.action is Action.STAY
    assert "were wanted within the last 600 s" in decision.reason


@pytest.mark.parametrize(
    ("observed", "why"),
    [
        (fleet(100, 50, 100, 100, rollout=True), "rollout"),
        (replace(fleet(100, 50, 100, 100), operation="away"), "the LinkOperation away is running"),
        (
            FleetObservation(4, (*fleet(100, 50, 100, 100).pods, PodObservation("x", leaving=True))),
            "must finish terminating",
        ),
        (FleetObservation(4, (*fleet(100, 50, 100).pods, PodObservation("x", ready=False))), "must become ready"),
        (FleetObservation(4, (*fleet(100, 50, 100).pods, PodObservation("x", ready_for=3.0))), "have reported"),
        (FleetObservation(4, fleet(100, 50, 100).pods), "have reported"),
    ],
)
def test_scale_down_waits_for_a_settled_fleet(observed: FleetObservation, why: str) -> None:
    decision = watched(observed)
    assert (decision.action, decision.replicas) == (Action.STAY, 4)
    assert why in decision.reason


def test_pods_that_leave_new_links_to_others_count_as_ready_and_none_is_removed_meanwhile() -> None:
    """Kubernetes would remove the unready ones, which have the most links."""
    plain = fleet(300, 300, 10, 10)
    excluded = replace(
        plain, pods=tuple(replace(pod, excluded_by="rebalance" if pod.links > 10 else "") for pod in plain.pods)
    )
    decision, other = watched(excluded), watched(plain)
    assert other.action is Action.DOWN
    assert decision.action is Action.STAY
    assert "2 pods must take new links again first: Kubernetes would remove unready ones" in decision.reason
    assert decision.rules == other.rules
    assert (decision.inputs.ready, decision.inputs.pending, decision.inputs.excluded) == (4, 0, 2)


def test_scale_down_waits_until_the_other_pods_have_capacity() -> None:
    # One pod would suffice at 70 %, but it would be filled above 60 %.
    spec = msgspec.structs.replace(SPEC, replicas=Replicas(min=1, max=9), scaling=Scaling(failure_tolerance=0))
    decision = watched(fleet(330, 330), spec)
    assert decision.required == 1
    assert (decision.action, decision.replicas) == (Action.STAY, 2)
    assert "filled to 66%" in decision.reason


@pytest.mark.parametrize(
    "observed",
    [
        fleet(0, 0, 0, 0, readable=False),
        FleetObservation(4, tuple(PodObservation(f"p{i}", age=40.0, links=0, capacity=1000) for i in range(4))),
        FleetObservation(4, tuple(PodObservation(f"p{i}") for i in range(4))),
    ],
)
def test_unknown_numbers_hold_the_replicas(observed: FleetObservation) -> None:
    decision = watched(observed)
    assert (decision.action, decision.replicas) == (Action.HOLD, 4)


def test_unknown_numbers_do_not_stop_a_scale_up() -> None:
    history = watched(fleet(650, 650), seconds=60).history
    spec = msgspec.structs.replace(SPEC, replicas=Replicas(min=4, max=20))
    decision = decide(fleet(readable=False, replicas=2), history, spec, history.links.observed_at + PERIOD)
    assert (decision.action, decision.replicas) == (Action.UP, 4)
    assert (decision.inputs.live, decision.inputs.links) == (1300, 1300)


def test_links_of_a_dead_pod_count_once_until_they_are_back() -> None:
    history = decide(fleet(600, 600, 600), History(), SPEC, 0.0).history
    gone = decide(FleetObservation(3, fleet(600, 600).pods), history, SPEC, PERIOD)
    assert (gone.inputs.live, gone.inputs.links) == (1200, 1800)
    back = decide(FleetObservation(3, fleet(900, 900).pods), gone.history, SPEC, 2 * PERIOD)
    assert back.inputs.links == 1800
    forgotten = decide(FleetObservation(3, fleet(600, 600).pods), history, SPEC, 130.0)
    assert forgotten.inputs.links == 1200


def test_links_of_a_silent_pod_count_until_they_appear_elsewhere() -> None:
    history = decide(fleet(600, 600, 600), History(), SPEC, 0.0).history
    silent = PodObservation("p2", age=20.0, links=600, capacity=1000)
    at_first = decide(FleetObservation(3, (*fleet(600, 600).pods, silent)), history, SPEC, PERIOD)
    assert (at_first.inputs.live, at_first.inputs.stale) == (1800, 1)
    moved = decide(FleetObservation(3, (*fleet(800, 900).pods, silent)), at_first.history, SPEC, 2 * PERIOD)
    assert moved.inputs.live == 1800
    and_new = decide(FleetObservation(3, (*fleet(1000, 1000).pods, silent)), moved.history, SPEC, 3 * PERIOD)
    assert and_new.inputs.live == 2000
    long_ago = PodObservation("p2", age=140.0, links=600, capacity=1000)
    after = decide(FleetObservation(3, (*fleet(600, 600).pods, long_ago)), moved.history, SPEC, 140.0)
    assert after.inputs.live == 1200


def test_capacity_is_what_the_pods_report_when_that_is_less() -> None:
    pods = tuple(PodObservation(f"p{i}", age=1.0, links=400, capacity=500) for i in range(2))
    assert decide(FleetObservation(2, pods), History(), SPEC, 0.0).inputs.capacity == 500


def test_external_mode_scales_without_a_window_and_down_by_one() -> None:
    outside = msgspec.structs.replace(SPEC, scaling=Scaling(mode=Mode.EXTERNAL, replicas=2))
    down = decide(fleet(900, 10, 900, 900), History(), outside, 0.0)
    assert (down.action, down.replicas, down.victims, down.target.winner) == (Action.DOWN, 3, ("p1",), "external")
    nine = msgspec.structs.replace(SPEC, scaling=Scaling(mode=Mode.EXTERNAL, replicas=9))
    up = decide(fleet(900, 900), History(), nine, 0.0)
    assert (up.action, up.replicas) == (Action.UP, 9)
    unsaid = msgspec.structs.replace(SPEC, scaling=Scaling(mode=Mode.EXTERNAL))
    assert decide(fleet(*(0,) * 7), History(), unsaid, 0.0).replicas == 7


def test_lowered_maximum_is_reached_one_pod_at_a_time() -> None:
    spec = msgspec.structs.replace(SPEC, replicas=Replicas(min=1, max=2))
    decision = decide(fleet(900, 900, 900, 5), History(), spec, 0.0)
    assert (decision.action, decision.replicas, decision.victims) == (Action.DOWN, 3, ("p3",))


def test_deletion_costs_weigh_commands_and_make_the_chosen_pod_the_only_cheapest() -> None:
    pods = (
        PodObservation("busy", age=1.0, links=10, capacity=1000, commands=3),
        PodObservation("a", age=1.0, links=100, capacity=1000),
        PodObservation("b", age=1.0, links=100, capacity=1000),
    )
    observed = FleetObservation(3, pods)
    assert watched(observed, msgspec.structs.replace(SPEC, replicas=Replicas(min=1))).victims == ("a",)
    assert deletion_costs(observed, ["a"]) == {"busy": 160, "a": 99, "b": 100}
    assert deletion_costs(observed) == {"busy": 160, "a": 100, "b": 100}


# -- for any fleet -------------------------------------------------------------------------------------

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
