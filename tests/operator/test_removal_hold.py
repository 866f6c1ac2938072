"""What holds a removal: how long a pod stays after agents have left or links were lost, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.autoscaler.decision import Action, Decision, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.link_history import AWAY_SECONDS, HERD_SECONDS, LOST_SECONDS, REMEMBERED
from fairlead_operator.autoscaler.history.zone_history import EXPECTED_BACK, ZoneHistory
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.removal_hold import Hold
from fairlead_operator.autoscaler.rules.zone_tolerance import ZoneToleranceRule, spread_pods
from fairlead_operator.autoscaler.snapshot import take_snapshot
from fairlead_operator.kube.machine import Machine

from support.operator_namespace import OperatorNamespace, condition

ROOT = Path(__file__).resolve().parents[2]
SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    accept_rate=100,
    replicas=Replicas(min=1, max=20),
    scaling=Scaling(failure_tolerance=0, step_down_seconds=10),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)
PERIOD = 10.0


def fleet(links: int, left: int = 0, pods: int = 4) -> FleetObservation:
    """`pods` that have these links each, and whose agents have left `left` times each."""
    reports = (PodObservation(f"p{i}", age=1.0, links=links, left=left, capacity=1000) for i in range(pods))
    return FleetObservation(pods, tuple(reports))


def after_fall(left: int, spec: LinkGatewaySpec = SPEC) -> tuple[float, list[Decision]]:
    """Four pods with 650 links each are watched for an hour and then have 100. Seconds until the first removal, and the
    decisions until then."""
    history = History()
    for i in range(360):
        history = decide(fleet(650), history, spec, i * PERIOD).history
    decisions = []
    for i in range(360, 1080):
        decisions.append(decide(fleet(100, left), history, spec, i * PERIOD))
        history = decisions[-1].history
        if decisions[-1].action is Action.DOWN:
            return (i - 360) * PERIOD, decisions
    raise AssertionError("no pod was removed within two hours")


def test_agents_that_left_are_not_waited_for() -> None:
    seconds, decisions = after_fall(left=550)
    assert seconds == math.ceil(AWAY_SECONDS / PERIOD - 1) * PERIOD  # the last demand was seen one pass before the fall
    assert {decision.hold.by for decision in decisions if decision.hold} == {Hold.RECENT_DEMAND}
    assert decisions[-1].hold is None


def test_pods_that_start_slowly_stay_for_longer() -> None:
    slow = msgspec.structs.replace(SPEC, scaling=Scaling(failure_tolerance=0, step_down_seconds=10, lead_seconds=200))
    assert after_fall(left=550, spec=slow)[0] > after_fall(left=550)[0] + 100


def test_links_that_are_lost_together_hold_their_pods_for_an_hour_and_count_as_demand_for_two_minutes() -> None:
    seconds, decisions = after_fall(left=0)
    assert HERD_SECONDS - 2 * PERIOD <= seconds <= HERD_SECONDS
    held = [decision.hold.by for decision in decisions if decision.hold]
    assert held[0] == "utilisation"  # for two minutes they count as if they were there
    assert held.count("utilisation") == pytest.approx(REMEMBERED / PERIOD, abs=2)
    assert held[-1] == Hold.LOST_LINKS
    assert decisions[-2].reason.endswith(
        "4 pods would be needed if the links return that were lost together 3590 s ago"
    )


def test_an_outage_is_over_when_the_links_are_back() -> None:
    history = History()
    for i, links in enumerate([650] * 60 + [400] * 60 + [500, 600] + [600] * 4):
        history = decide(fleet(links), history, SPEC, i * PERIOD).history
        back = i >= 123  # from the second pass after the last one in which they grew
        assert (history.links.outage is not None) == (i >= 60 and not back)
        assert history.links.growing_seconds == 0, "links that return are no growth"
    assert after_fall_from(history, 126) < HERD_SECONDS / 2


def after_fall_from(history: History, passes: int) -> float:
    """Seconds until the first removal after 600 of 650 agents of each pod have said goodbye."""
    for i in range(passes, passes + 400):
        decision = decide(fleet(50, left=550), history, SPEC, i * PERIOD)
        history = decision.history
        if decision.action is Action.DOWN:
            return (i - passes) * PERIOD
    raise AssertionError("no pod was removed within an hour")


def test_links_that_are_lost_one_by_one_hold_their_pods_for_ten_minutes() -> None:
    """A twentieth every two minutes is no outage."""
    history, held = History(), []
    for i in range(400):
        decision = decide(fleet(round(650 * 0.9957**i)), history, SPEC, i * PERIOD)
        history = decision.history
        assert history.links.outage is None
        if decision.action is Action.DOWN:
            break
        held.append(decision.hold.by if decision.hold else "")
    enough = next(i for i in range(400) if 4 * round(650 * 0.9957**i) <= 2100)  # three pods hold 2100 at 70 %
    assert enough * PERIOD + LOST_SECONDS == pytest.approx(i * PERIOD, abs=PERIOD)
    assert held[-1] == Hold.LOST_LINKS


def test_window_of_the_spec_replaces_what_is_known() -> None:
    window = Scaling(failure_tolerance=0, step_down_seconds=10, window_seconds=300)
    seconds, decisions = after_fall(left=550, spec=msgspec.structs.replace(SPEC, scaling=window))
    assert 280 <= seconds <= 300
    assert {decision.hold.by for decision in decisions if decision.hold} == {Hold.STABILIZATION_WINDOW}


def test_hold_says_when_it_ends() -> None:
    for left in (550, 0):
        seconds, decisions = after_fall(left)
        for i, decision in enumerate(decisions[:-1]):
            assert decision.hold is not None
            if decision.hold.by in (Hold.RECENT_DEMAND, Hold.LOST_LINKS):
                assert decision.hold.seconds is not None
                if decision.hold.by == Hold.LOST_LINKS:
                    assert i * PERIOD + decision.hold.seconds == pytest.approx(seconds, abs=PERIOD)


def test_agents_that_move_between_two_reports_hold_no_removal() -> None:
    """Of three pods one leaves, and its 196 agents move, 23 a second. Its report is five seconds older than those of
    the other pods, so 115 agents are in two of them. One pod suffices for 588 agents, and not for 703."""
    history = History()
    for i in range(72):
        history = decide(fleet(196, pods=3), history, SPEC, i * PERIOD).history
    for i, (moved, reported) in enumerate([(120, 191), *[(196, 0)] * 8], 72):
        pods = [PodObservation(f"p{n}", age=1.0, links=196 + moved // 2, capacity=1000) for n in range(2)]
        if reported:
            pods.append(PodObservation("p2", age=6.0, links=reported, capacity=1000, leaving=True))
        decision = decide(FleetObservation(2, tuple(pods)), history, SPEC, i * PERIOD)
        history = decision.history
        assert history.links.links <= 588
        if decision.action is Action.DOWN:
            return
    raise AssertionError(f"the removal is held: {decision.hold}")


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 400)), min_size=2, max_size=40))
def test_departures_never_make_more_links_count_than_without_them(looks: list[tuple[int, int]]) -> None:
    """The links that count are never fewer than the live ones, and never more than if the same links had been lost."""
    known, unknown, left = History(), History(), 0
    for i, (links, more) in enumerate(looks):
        left += more
        known = known.observe(fleet(links, left, pods=2), i * PERIOD)
        unknown = unknown.observe(fleet(links, 0, pods=2), i * PERIOD)
        assert known.links.live == unknown.links.live <= known.links.links <= unknown.links.links


def test_counter_that_begins_anew_is_no_departure() -> None:
    history = History().observe(fleet(500, left=300, pods=2), 0.0)
    again = history.observe(fleet(100, left=0, pods=2), PERIOD)
    assert again.links.links == 1000


def test_every_hold_is_explained() -> None:
    page = (ROOT / "docs" / "operator.md").read_text()
    assert [hold for hold in Hold if f"| `{hold}` |" not in page] == []


# -- zones ---------------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(2, 8), st.integers(1, 7))
def test_pods_of_the_other_zones_suffice_and_one_pod_less_does_not(needed: int, zones: int, failures: int) -> None:
    if failures >= zones:
        return

    def left(pods: int) -> int:
        sizes = sorted(pods // zones + (i < pods % zones) for i in range(zones))
        return sum(sizes[: zones - failures])

    pods = spread_pods(needed, zones, failures)
    assert left(pods) >= needed
    assert pods == 0 or left(pods - 1) < needed


@pytest.mark.parametrize(
    ("zones", "tolerance", "required", "why"),
    [
        ("aabb", 0, 0, "scaling.zoneTolerance is 0"),
        ("aabb", 1, 6, "it takes 6 pods"),  # 2,000 links at 95 % fill three pods
        ("aabc", 1, 5, "it takes 5 pods"),
        ("aaaa", 1, 0, "only in the zones a"),
        ("    ", 1, 0, "in no zone that is known"),
    ],
)
def test_zone_tolerance_needs_pods_in_other_zones(zones: str, tolerance: int, required: int, why: str) -> None:
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(zone_tolerance=tolerance))
    observed = fleet(500)
    pods = tuple(
        replace(pod, machine=Machine(f"m{i}", zone.strip()))
        for i, (pod, zone) in enumerate(zip(observed.pods, zones, strict=True))
    )
    observed = replace(observed, pods=pods)
    found = ZoneToleranceRule().evaluate(take_snapshot(observed, History().observe(observed, 0.0), spec, 0.0))
    assert found.replicas == required
    assert why in found.reason


def in_zones(zones: str, replicas: int = 6, *, rollout: bool = False) -> FleetObservation:
    observed = fleet(500, pods=len(zones))
    places = zip(observed.pods, zones, strict=True)
    pods = tuple(replace(pod, machine=Machine(f"m{i}", zone.strip())) for i, (pod, zone) in enumerate(places))
    return replace(observed, replicas=replicas, pods=pods, rollout=rollout)


@pytest.mark.parametrize(
    ("after", "failed"),
    [
        (in_zones("aabb"), ["c"]),  # a third of six pods is gone
        (in_zones("aabb  "), ["c"]),  # the pods that replace them are not placed yet
        (in_zones("aaaaaa"), ["b", "c"]),
        (in_zones("aabbc"), []),
        (in_zones("aabb", replicas=4), []),  # they were to be fewer
        (in_zones("aabb", rollout=True), []),
        (in_zones("      "), []),  # nobody knows
    ],
)
def test_a_zone_that_loses_its_pods_has_failed(after: FleetObservation, failed: list[str]) -> None:
    history = ZoneHistory().observe(in_zones("aabbcc"), 0.0).observe(after, 10.0)
    assert [zone for zone, _ in history.failed] == failed
    later = history.observe(replace(after, rollout=False), 10.0 + EXPECTED_BACK - 1)
    assert [zone for zone, _ in later.failed] == failed
    assert later.observe(in_zones("aabbcc"), 20.0).failed == ()
    assert history.observe(replace(after, rollout=False), 10.0 + EXPECTED_BACK).failed == ()


def test_while_a_zone_is_down_the_fleet_needs_no_room_for_another_one() -> None:
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(zone_tolerance=1))
    history, found = History(), []
    for i, zones in enumerate(("aabbcc", "aabb", "aabbb", "aabbcc")):
        history = history.observe(in_zones(zones), i * PERIOD)
        snapshot = take_snapshot(in_zones(zones), history, spec, i * PERIOD)
        inputs = msgspec.structs.replace(snapshot.inputs, links=3000)
        status = ZoneToleranceRule().evaluate(replace(snapshot, inputs=inputs))
        found.append((status.replicas, "failed already: c" in status.reason))
    assert found == [(6, False), (4, True), (4, True), (6, False)]


# -- against a real API server -------------------------------------------------------------------------


async def test_condition_status_and_event_say_what_holds_a_removal(namespace: OperatorNamespace) -> None:
    body = await namespace.gateway(
        replicas={"min": 1, "max": 9}, scaling={"failureTolerance": 0, "windowSeconds": 60, "stepDownSeconds": 300}
    )
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"replicas": {"min": 3}}})
    reconciler = namespace.reconciler(body)
    await namespace.reconcile(reconciler)
    names = await namespace.run_pods(3)
    for name in names:
        await namespace.beat(name, 10)
    status = await namespace.reconcile(reconciler)
    assert status["decision"]["removal"] == {"heldBy": "min", "reason": "replicas.min asks for 3 pods"}
    assert condition(status, "RemovalHeld")[:2] == ("True", "Min")
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"replicas": {"min": 1}}})
    status = await namespace.reconcile(reconciler)
    removal = status["decision"]["removal"]
    assert removal["heldBy"] == "StabilizationWindow"
    message = f"1 pod would suffice, but 3 were wanted within the last 60 s; until {removal['until']}"
    assert condition(status, "RemovalHeld") == ("True", "StabilizationWindow", message)
    for _ in range(6):
        for name in names:
            await namespace.beat(name, 10)
        status = await namespace.reconcile(reconciler)
        if status["decision"]["action"] == "Down":
            break
    assert condition(status, "RemovalHeld")[:2] == ("False", "Removing")
    messages = [message for reason, message in await namespace.events() if reason == "RemovalHeld"]
    assert len(messages) == 1
    assert messages[0].startswith("1 pod would suffice, but 3 were wanted")
