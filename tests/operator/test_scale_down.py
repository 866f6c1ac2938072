"""Which pod is removed: cases, and properties for pods on any machines, in any zones, of any revisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fleet.moves.move_rate import FINAL_SECONDS, RECEIVED_SHARE
from fairlead_operator.api.gateway_spec import (
    LinkGatewaySpec,
    Mode,
    Redis,
    Replicas,
    Scaling,
    Tokens,
    TokenSecret,
)
from fairlead_operator.api.moves_spec import Moves
from fairlead_operator.autoscaler.decision import Action, Decision, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.removal_hold import FILL_AFTER_REMOVAL
from fairlead_operator.autoscaler.scale_down import STEP_SHARE, choose_victim, deletion_costs, removal_costs
from fairlead_operator.kube.machine import Machine

ZONES = ("a", "b", "c")
machines = st.builds(
    lambda zone, number, closed: Machine(f"m-{zone}{number}", zone, closed),
    st.sampled_from(ZONES), st.integers(1, 3), st.sampled_from(["", "", "", "cordoned", "not ready"]),
)  # fmt: skip
placed_pods = st.builds(
    PodObservation,
    name=st.just(""),
    links=st.integers(0, 5000),
    commands=st.integers(0, 20),
    revision=st.sampled_from(["new", "new", "old"]),
    machine=machines,
)


def fleet(pods: Iterable[PodObservation], revision: str = "") -> FleetObservation:
    named = tuple(replace(pod, name=f"p{i}", age=1.0) for i, pod in enumerate(pods))
    return FleetObservation(len(named), named, revision=revision)


def on(machine: str, zone: str = "", *, closed: str = "", links: int = 0, revision: str = "") -> PodObservation:
    return PodObservation("", links=links, revision=revision, machine=Machine(machine, zone, closed))


def zones(pods: Iterable[PodObservation]) -> Counter[str]:
    return Counter(pod.zone for pod in pods)


def skew(pods: Iterable[PodObservation], over: Iterable[str]) -> int:
    """As a topologySpreadConstraint over these zones counts it."""
    counts = zones(pods)
    return max(counts[zone] for zone in over) - min(counts[zone] for zone in over)


def chosen(observed: FleetObservation) -> PodObservation:
    name = choose_victim(observed).name
    return next(pod for pod in observed.pods if pod.name == name)


def without(observed: FleetObservation, gone: PodObservation) -> FleetObservation:
    return replace(observed, pods=tuple(pod for pod in observed.pods if pod is not gone))


@pytest.mark.parametrize(
    ("pods", "victim", "reason"),
    [
        ([on("m", links=3), on("m", links=1)], "p1", "its removal disturbs the least (links: 1, running commands: 0)"),
        ([on("m", links=1), on("m", links=1)], "p0", "all pods are alike"),
        (
            [on("m1", "a", links=1), on("m2", "b", closed="cordoned", links=900), on("m3", "b", links=2)],
            "p1",
            "its machine m2 is cordoned",
        ),
        (
            [on("m1", "a", links=1), on("m2", "b", links=900), on("m3", "b", links=800)],
            "p2",
            "the zone b has the most pods (2), and its removal disturbs the least (links: 800, running commands: 0)",
        ),
        ([on("m1", "a"), on("m2", "a", links=9), on("m2", "a", links=9)], "p1", "the machine m2 has the most pods (2)"),
        # The zone of one pod is not known, so zones are no reason.
        (
            [on("m1", "a"), on("m2", "b", links=9), on("m3", "b", links=9), on("m4")],
            "p0",
            "its removal disturbs the least (links: 0, running commands: 0)",
        ),
        ([on("m1", "a", revision="new"), on("m2", "b", links=5, revision="old")], "p1", "it is of an old revision"),
    ],
)
def test_the_chosen_pod_and_the_reason_that_is_said(pods: list[PodObservation], victim: str, reason: str) -> None:
    made = choose_victim(fleet(pods, "new" if pods[0].revision else ""))
    assert (made.name, made.reason) == (victim, reason)


@given(st.lists(placed_pods, min_size=1, max_size=12), st.sampled_from(["", "new"]))
def test_a_pod_of_any_fleet_goes_by_its_machine_then_revision_then_zone_then_links(
    pods: list[PodObservation], revision: str
) -> None:
    observed = fleet(pods, revision)
    victim = chosen(observed)
    rivals = [pod for pod in observed.pods if pod.machine.closed] or list(observed.pods)
    assert victim in rivals
    rivals = [pod for pod in rivals if revision not in ("", pod.revision)] or rivals
    assert victim in rivals
    counts = zones(observed.pods)
    assert counts[victim.zone] == max(counts[pod.zone] for pod in rivals)
    same = [pod for pod in rivals if pod.machine.name == victim.machine.name]
    assert victim.removal_cost == min(pod.removal_cost for pod in same)


@given(st.lists(placed_pods, min_size=2, max_size=12))
def test_a_removal_among_open_machines_empties_no_zone_while_another_has_two_and_keeps_the_skew(
    pods: list[PodObservation],
) -> None:
    observed = fleet(replace(pod, machine=replace(pod.machine, closed="")) for pod in pods)
    used = {pod.zone for pod in observed.pods}
    victim = chosen(observed)
    left = without(observed, victim).pods
    counts = zones(left)
    assert counts[victim.zone] > 0 or max(counts.values(), default=0) <= 1
    for over in (used, ZONES):  # as domains only zones with pods, or also those with machines alone
        assert skew(left, over) <= max(1, skew(observed.pods, over))


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=12))
def test_a_balanced_fleet_stays_balanced_down_to_its_last_pod(links: list[int]) -> None:
    observed = fleet(on(f"m{i}", ZONES[i % 3], links=count) for i, count in enumerate(links))
    while len(observed.pods) > 1:
        observed = without(observed, chosen(observed))
        assert skew(observed.pods, ZONES) <= 1


@given(st.lists(placed_pods, min_size=1, max_size=12), st.sampled_from(["", "new"]))
def test_external_mode_puts_pods_on_closed_machines_first(pods: list[PodObservation], revision: str) -> None:
    observed = fleet(pods, revision)
    costs = deletion_costs(observed)
    assert all(-(2**31) <= cost < 2**31 for cost in costs.values())  # what the annotation may hold
    closed = [costs[pod.name] for pod in observed.pods if pod.machine.closed]
    open_ones = [costs[pod.name] for pod in observed.pods if not pod.machine.closed]
    assert not closed or not open_ones or max(closed) < min(open_ones)


@given(
    st.dictionaries(st.integers(0, 20).map(str), st.integers(-(2**31), 2**31 - 1) | st.just(0), min_size=1),
    st.data(),
)
def test_kubernetes_removes_the_chosen_pods_and_only_what_changes_is_written(
    written: dict[str, int], data: st.DataObject
) -> None:
    victims = data.draw(st.sets(st.sampled_from(sorted(written)), min_size=1))
    changes = removal_costs(written, victims)
    after = written | changes
    assert all(after[victim] < cost for victim in victims for name, cost in after.items() if name not in victims)
    assert all(after[name] != written[name] for name in changes)
    assert all(written[name] < 0 for name in changes.keys() - victims), "a pod that costs something keeps its cost"
    assert removal_costs(after, victims) == {}


# -- several pods in one step --------------------------------------------------------------------------

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    accept_rate=100,
    replicas=Replicas(min=1, max=1000),
    scaling=Scaling(window_seconds=30, step_down_seconds=60),
    moves=Moves(max_per_second=1000),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)


def watched(observed: FleetObservation, spec: LinkGatewaySpec = SPEC) -> Decision:
    """The first decision that removes pods, or else the one after a window in which nothing changed."""
    history = History()
    for at in range(0, 50, 10):
        decision = decide(observed, history, spec, float(at))
        if decision.action is Action.DOWN:
            return decision
        history = decision.history
    return decision


def loaded(*links: int, spare: float = 100.0) -> FleetObservation:
    """Pods with these links, each of which can accept `spare` links per second more."""
    return fleet(PodObservation("", links=count, capacity=1000, spare_accept_rate=spare) for count in links)


def test_a_large_fleet_loses_as_many_pods_at_once_as_the_budget_of_moves_empties() -> None:
    decision = watched(loaded(*[300] * 200))
    assert decision.replicas == 190
    assert len(decision.victims) == 10
    assert "10 pods should go, p0 first: all pods are alike; then 9 others" in decision.reason
    assert decision.reason.endswith("no more go at once: 5% of the pods are the most")
    slow = watched(loaded(*[300] * 200), msgspec.structs.replace(SPEC, moves=Moves(max_per_second=100)))
    assert slow.replicas == 194
    assert slow.reason.endswith("the links of more pods cannot move within 20 s at 100 per second")
    full = watched(loaded(*[595] * 200))
    assert full.replicas == 199
    assert full.reason.endswith("the remaining pods would be filled to 60% (at most 60% is allowed)")


def test_a_fleet_of_a_handful_of_pods_loses_one_at_a_time() -> None:
    for pods in range(3, 40):
        decision = watched(loaded(*[10] * pods))
        assert (decision.action, decision.replicas) == (Action.DOWN, pods - 1)
        assert decision.reason.endswith("; p0 should go: all pods are alike")


def test_pods_whose_nodes_report_no_room_for_moves_go_one_at_a_time() -> None:
    assert len(watched(loaded(*[300] * 200, spare=0.0)).victims) == 1


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 400), st.integers(0, 800), st.integers(0, 300), st.floats(0, 100), st.integers(1, 2000),
    st.integers(10, 600), st.none() | st.integers(1, 400), st.integers(1, 100),
)  # fmt: skip
def test_no_step_removes_more_than_the_others_carry_and_the_budget_empties(
    pods: int, least: int, more: int, spare: float, most: int, seconds: int, asked: int | None, high: int
) -> None:
    """Fleets of any size and fill, in the mode Auto and with a number that is given from outside."""
    spec = msgspec.structs.replace(
        SPEC,
        replicas=Replicas(min=1, max=1000 if asked is None else high),
        scaling=Scaling(
            mode=Mode.AUTO if asked is None else Mode.EXTERNAL,
            replicas=asked,
            window_seconds=30,
            step_down_seconds=seconds,
        ),
        moves=Moves(max_per_second=most),
    )
    observed = loaded(*(least + i * more // pods for i in range(pods)), spare=spare)
    decision = watched(observed, spec)
    if decision.action is not Action.DOWN:
        assert decision.replicas >= pods
        assert decision.victims == ()
        return
    victims = [pod for pod in observed.pods if pod.name in decision.victims]
    assert 1 <= len(victims) == len(decision.victims) == pods - decision.replicas
    assert decision.replicas >= decision.target.replicas
    assert len(victims) <= max(1, pods * STEP_SHARE)
    if len(victims) > 1:
        carried = decision.replicas * 1000 * spec.target_utilisation / 100 * FILL_AFTER_REMOVAL
        assert sum(pod.links for pod in observed.pods) <= carried
        rate = min(most, RECEIVED_SHARE * spare * decision.replicas)
        drain = min(seconds, spec.drain_seconds - FINAL_SECONDS)
        assert sum(pod.links for pod in victims) <= rate * drain * (1 + 1e-9)
