"""The decision: which rule wins, what waits before a pod is removed, and what holds while numbers are unknown."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from fairlead_operator.api.gateway_spec import Mode, Replicas, Scaling
from fairlead_operator.autoscaler.decision import Action, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.scale_down import deletion_costs

from support.decisions import PERIOD, SPEC, WINDOW, WINDOWED, asks, fleet, watched


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


def test_deletion_costs_weigh_commands() -> None:
    pods = (
        PodObservation("busy", age=1.0, links=10, capacity=1000, commands=3),
        PodObservation("a", age=1.0, links=100, capacity=1000),
        PodObservation("b", age=1.0, links=100, capacity=1000),
    )
    observed = FleetObservation(3, pods)
    assert watched(observed, msgspec.structs.replace(SPEC, replicas=Replicas(min=1))).victims == ("a",)
    assert deletion_costs(observed) == {"busy": 160, "a": 100, "b": 100}
