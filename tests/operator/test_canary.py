"""Whether a canary serves as well as the other pods, without a cluster: what fails one, and what never does."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any, Unpack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.reports.traffic import BOUNDS, Traffic
from fairlead.routing.membership.traffic_counter import TrafficCounter
from fairlead_operator.api.gateway_spec import Canary, LinkGatewaySpec
from fairlead_operator.api.gateway_status import CanaryReport
from fairlead_operator.autoscaler.canary.canary_analysis import (
    START_TIMEOUT,
    canary_size,
    canary_targets,
    judge_canary,
)
from fairlead_operator.autoscaler.canary.canary_history import CanaryHistory
from fairlead_operator.autoscaler.canary.measurement import ALWAYS_ALLOWED, Served, compare
from fairlead_operator.autoscaler.canary.rollout_stage import RolloutStage, is_promoted, next_stage
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation

from support.decisions import PodFields

SPEC = Canary(percent=10, seconds=60, min_links=10, min_commands=20)
GATEWAY = msgspec.convert(
    {"image": "gateway:1", "redis": {"url": "redis://r"}, "tokens": {"secretRef": {"name": "t"}},
     "rollout": {"canary": {"percent": 10, "seconds": 60, "minLinks": 10, "minCommands": 20}}},
    LinkGatewaySpec,
)  # fmt: skip

counts = st.integers(0, 2000)


def traffic(accepted: int, rejected: int, lost: int, ended: int, failed: int, overheads: list[int]) -> Traffic:
    """Buckets of overheads from 1 ms to 1 s hold `overheads`."""
    buckets = [0] * (len(BOUNDS) + 1)
    buckets[: 4 * len(overheads) : 4] = overheads
    return Traffic(accepted, rejected, min(lost, accepted), ended, min(failed, ended), tuple(buckets))


traffics = st.builds(traffic, counts, counts, counts, counts, counts, st.lists(counts, min_size=5, max_size=5))
served = st.builds(Served, traffics, st.integers(0, 10_000_000))


def fields(counter: TrafficCounter) -> dict[bytes, bytes]:
    """A node's row as Redis returns it."""
    return {name.encode(): str(value).encode() for name, value in counter.fields().items()}


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 200), st.booleans())), st.integers(0, 9))
def test_row_says_what_a_node_has_counted(commands: list[tuple[bool, float, bool]], lost: int) -> None:
    counter = TrafficCounter()
    counter.lost = lost
    for failed, seconds, timed in commands:
        counter.add_command(failed, (seconds / 2, seconds / 4, None, None, seconds / 4) if timed else ())
    found = Traffic.parse(fields(counter))
    assert found is not None
    assert (found.lost, found.ended, found.failed) == (lost, len(commands), sum(failed for failed, _, _ in commands))
    assert found.timed == sum(timed for _, _, timed in commands)
    slow = sum(timed and seconds > BOUNDS[10] for _, seconds, timed in commands)
    assert found.slower_than(BOUNDS[10]) == slow


def test_row_of_a_node_that_does_not_count_is_not_one_that_counts_nothing() -> None:
    assert Traffic.parse({b"links": b"3", b"accepted": b"7"}) is None
    assert Traffic.parse(fields(TrafficCounter())) == Traffic()


@given(traffics, traffics)
def test_growth_is_the_difference_unless_the_process_began_anew(before: Traffic, growth: Traffic) -> None:
    assert (before + growth).since(before) == growth
    later = replace(growth, accepted=before.accepted - 1) if before.accepted else growth
    if before.accepted:
        assert later.since(before) == later


@given(traffics, st.floats(0.01, 1))
def test_overhead_is_a_bound_that_a_share_keeps_to(traffic: Traffic, share: float) -> None:
    bound = traffic.overhead(share)
    if bound < BOUNDS[-1]:
        assert traffic.timed - traffic.slower_than(bound) >= share * traffic.timed - 1e-6


@given(served, st.integers(1, 20), st.floats(0.1, 1))
def test_canary_that_has_its_share_of_every_fault_does_not_fail(others: Served, part: int, factor: float) -> None:
    """It served a part of what the others did, with as large a share of faults or a smaller one."""
    one = others.traffic

    def scaled(count: int, by: float) -> int:
        return math.floor(count * by / part)

    canary = Traffic(
        scaled(one.accepted, 1), scaled(one.rejected, factor), scaled(one.lost, factor), scaled(one.ended, 1),
        scaled(one.failed, factor), tuple(count // part for count in one.overheads),
    )  # fmt: skip
    if one.accepted == 0 and canary.rejected:
        return
    measured = compare(Served(canary, others.link_seconds / part), others, SPEC)
    assert [found.name for found in measured if found.failed] == []


@given(served, served, st.integers(1, 500))
def test_more_faults_of_the_canary_never_excuse_it_and_more_of_the_others_never_accuse_it(
    canary: Served, others: Served, more: int
) -> None:
    now = {found.name: found for found in compare(canary, others, SPEC)}
    worse = replace(canary.traffic, lost=canary.traffic.lost + more)
    assert (
        next(f for f in compare(replace(canary, traffic=worse), others, SPEC) if f.name == "LinksLost").failed
        >= now["LinksLost"].failed
    )
    shared = replace(others.traffic, lost=others.traffic.lost + more)
    assert (
        next(f for f in compare(canary, replace(others, traffic=shared), SPEC) if f.name == "LinksLost").failed
        <= now["LinksLost"].failed
    )


@given(st.builds(Served, st.builds(Traffic, st.integers(0, 9), st.just(0), counts, st.integers(0, 19), counts)), served)
def test_nothing_is_judged_before_enough_was_seen(canary: Served, others: Served) -> None:
    assert not any(found.judged for found in compare(canary, others, SPEC))


def test_chance_fails_no_canary_and_five_times_the_faults_fail_each() -> None:
    """Canaries that are like the others, and as many that lose links and fail commands five times as often."""
    random_ = random.Random(13)

    def drawn(count: int, share: float) -> int:
        return sum(random_.random() < share for _ in range(count))

    def canary(factor: float) -> bool:
        others = Traffic(2000, 0, drawn(2000, 0.05), 2000, drawn(2000, 0.05))
        one = Traffic(300, 0, drawn(300, 0.05 * factor), 300, drawn(300, 0.05 * factor))
        return any(found.failed for found in compare(Served(one, 300.0), Served(others, 2000.0), SPEC))

    assert sum(canary(1) for _ in range(200)) == 0
    assert sum(canary(5) for _ in range(200)) == 200


def pod(name: str, revision: str, links: int = 0, **more: Unpack[PodFields]) -> PodObservation:
    return replace(
        PodObservation(name, age=1.0, links=links, capacity=1000, revision=revision, traffic=Traffic()), **more
    )


def fleet(*pods: PodObservation, replicas: int = 2) -> FleetObservation:
    return FleetObservation(replicas, pods, rollout=True, revision="new", canary=True)


def history(seen: FleetObservation, **more: Any) -> CanaryHistory:
    return replace(CanaryHistory().observe(seen, 1, 0.0), **more)


def test_history_counts_what_came_since_it_began() -> None:
    old, new = pod("old", "a", 100, traffic=Traffic(500, 0, 5)), pod("new", "new", 10, traffic=Traffic(10, 0, 1))
    seen = CanaryHistory().observe(fleet(old), 1, 0.0)
    assert (seen.waited, seen.watched) == (0.0, 0.0)
    seen = seen.observe(fleet(old, new), 1, 10.0)
    assert (seen.canary.traffic.accepted, seen.canary.traffic.lost) == (10, 1), (
        "a pod that has started since began at 0"
    )
    assert (seen.others.traffic, seen.others.link_seconds) == (Traffic(), 1000.0)
    seen = seen.observe(
        fleet(replace(old, traffic=Traffic(510, 0, 6)), replace(new, traffic=Traffic(12, 0, 1))), 1, 20.0
    )
    assert (seen.canary.traffic.accepted, seen.others.traffic.accepted, seen.others.traffic.lost) == (12, 10, 1)
    assert seen.watched == 20.0
    seen = seen.observe(replace(fleet(old, new), readable=False), 1, 30.0)
    assert seen.watched == 20.0, "a time in which nothing could be read does not count"
    seen = seen.observe(fleet(old, replace(new, ready=False)), 1, 40.0)
    assert (seen.watched, seen.waited) == (20.0, 10.0)
    assert seen.observe(replace(fleet(old), revision="newer"), 1, 50.0).canary == Served()


def test_new_leader_counts_from_its_first_look() -> None:
    old, new = pod("old", "a", 100, traffic=Traffic(500, 0, 5)), pod("new", "new", 10, traffic=Traffic(10, 0, 9))
    seen = CanaryHistory().observe(fleet(old, new), 1, 0.0).observe(fleet(old, new), 1, 10.0)
    assert seen.canary.traffic == Traffic() == seen.others.traffic


@pytest.mark.parametrize(
    ("pods", "more", "expected"),
    [
        ((pod("new", "new", crash="its container exited with code 2"),), {}, ("Failed", "Crashing")),
        ((pod("new", "new", ready=False),), {}, ("Running", "Starting")),
        ((pod("new", "new", age=20.0),), {}, ("Running", "Starting")),
        ((pod("new", "new", ready=False),), {"waited": START_TIMEOUT}, ("Failed", "NotReady")),
        ((pod("new", "new"),), {"watched": 59.0}, ("Running", "Comparing")),
        ((pod("new", "new"),), {"watched": 179.0}, ("Running", "Comparing")),
        ((pod("new", "new"),), {"watched": 180.0}, ("Succeeded", "TooLittleTraffic")),
        ((pod("new", "new"),), {"watched": 60.0, "canary": Served(Traffic(10), 9.0), "others": Served(Traffic(), 90.0)},
         ("Succeeded", "ServesAsWell")),
        ((pod("new", "new"),), {"watched": 60.0, "others": Served(Traffic(40))}, ("Failed", "NoLinks")),
        ((pod("new", "new"),), {"watched": 180.0, "others": Served(Traffic(18))}, ("Succeeded", "TooLittleTraffic")),
        ((pod("new", "new"),), {"watched": 60.0, "canary": Served(Traffic(0, 2))}, ("Failed", "LinksRejected")),
        ((pod("new", "new"),), {"watched": 180.0, "canary": Served(Traffic(1, 2))}, ("Succeeded", "TooLittleTraffic")),
        ((pod("new", "new"),), {"watched": 180.0, "canary": Served(Traffic(0, 2)), "others": Served(Traffic(1, 2))},
         ("Succeeded", "TooLittleTraffic")),
        ((pod("new", "new"),),
         {"watched": 5.0, "canary": Served(Traffic(10, 0, ALWAYS_ALLOWED + 1)), "others": Served(Traffic(), 9.0)},
         ("Failed", "LinksLost")),
    ],
)  # fmt: skip
def test_how_a_canary_ends(pods: tuple[PodObservation, ...], more: dict[str, Any], expected: tuple[str, str]) -> None:
    seen = fleet(pod("old-1", "a", 100), *pods)
    verdict = judge_canary(seen, history(seen, **more), GATEWAY)
    assert (verdict.state, verdict.reason) == expected


@pytest.mark.parametrize(
    ("replicas", "percent", "most", "pods"),
    [(1, 5, 200, 1), (20, 5, 200, 1), (21, 5, 200, 2), (100, 5, 200, 2), (100, 5, 800, 5), (100, 50, 800, 8)],
)
def test_a_canary_has_no_more_pods_than_the_budget_empties_at_once(
    replicas: int, percent: int, most: int, pods: int
) -> None:
    """A pod that accepts 200 links per second empties one of 10,000 in the time in which `most` moves empty more."""
    canary = msgspec.structs.replace(SPEC, percent=percent)
    moves = msgspec.structs.replace(GATEWAY.moves, max_per_second=most)
    rollout = msgspec.structs.replace(GATEWAY.rollout, canary=canary)
    assert canary_size(replicas, msgspec.structs.replace(GATEWAY, moves=moves, rollout=rollout)) == pods


def test_reason_that_a_pod_does_not_run_is_in_the_message() -> None:
    seen = fleet(pod("old-1", "a", 100), pod("new", "new", ready=False))
    verdict = judge_canary(seen, history(seen), GATEWAY, "new: Back-off pulling image")
    assert verdict.message == "0 of 1 pod serve: new: Back-off pulling image"


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=20), st.integers(0, 5000), st.integers(0, 5000),
    st.integers(1, 50),
)  # fmt: skip
def test_no_more_agents_move_for_a_canary_than_its_share(
    links: list[int], on_canary: int, moved: int, percent: int
) -> None:
    spec = msgspec.structs.replace(
        GATEWAY, rollout=msgspec.structs.replace(GATEWAY.rollout, canary=msgspec.structs.replace(SPEC, percent=percent))
    )
    size = canary_size(len(links), spec)
    olds = [pod(f"old-{n}", "a", count) for n, count in enumerate(links)]
    news = [pod(f"new-{n}", "new", on_canary if n == 0 else 0) for n in range(size)]
    seen = fleet(*olds, *news, replicas=len(links))
    targets = canary_targets(seen, history(seen, moved=moved), spec)
    if not targets:
        return
    assert set(targets) == {one.name for one in olds}
    assert all(0 <= targets[one.name] <= one.links for one in olds)
    most = percent / 100 * (sum(links) + on_canary)
    away = sum(one.links - targets[one.name] for one in olds)
    chance = size / (size + len(olds))
    assert on_canary + away <= most + len(olds), "rounded up for each pod"
    assert moved + (away - len(olds)) / chance <= most


@pytest.mark.parametrize(
    "more",
    [
        {"scaling": {"mode": "Paused"}},
        {"scaling": {"mode": "DryRun"}},
        {"rebalance": {"enabled": False}},
        {"rollout": {}},
    ],
    ids=str,
)
def test_nobody_is_moved_where_nobody_may_be(more: dict[str, Any]) -> None:
    seen = fleet(pod("old", "a", 900), pod("new", "new"))
    assert canary_targets(seen, history(seen), GATEWAY)
    spec = msgspec.convert(msgspec.to_builtins(GATEWAY) | more, LinkGatewaySpec)
    assert canary_targets(seen, history(seen), spec) == {}


@pytest.mark.parametrize(
    ("template", "accepted", "before", "canary", "stage"),
    [
        ("b", "", None, SPEC, RolloutStage.NORMAL),  # the first template of a fleet
        ("a", "a", None, SPEC, RolloutStage.NORMAL),
        ("b", "a", None, SPEC, RolloutStage.CANARY),
        ("b", "a", None, None, RolloutStage.NORMAL),
        ("b", "a", ("Running", "b"), SPEC, RolloutStage.CANARY),
        ("b", "a", ("Running", "b"), None, RolloutStage.NORMAL),
        ("b", "a", ("Failed", "b"), SPEC, RolloutStage.WITHHELD),
        ("c", "a", ("Failed", "b"), SPEC, RolloutStage.CANARY),
        ("a", "a", ("Failed", "b"), SPEC, RolloutStage.NORMAL),
        ("b", "b", ("Promoting", "b"), SPEC, RolloutStage.PROMOTION),
        ("b", "b", ("Succeeded", "b"), SPEC, RolloutStage.NORMAL),
        ("c", "b", ("Promoting", "b"), SPEC, RolloutStage.CANARY),
    ],
)
def test_template_of_a_pass(
    template: str, accepted: str, before: tuple[str, str] | None, canary: Canary | None, stage: RolloutStage
) -> None:
    report = None if before is None else CanaryReport(state=before[0], template=before[1])
    assert next_stage(template, accepted, report, canary) is stage


@pytest.mark.parametrize(
    ("ready_for", "surge", "seconds", "promoted"),
    [
        ((600.0,), "100%", 10.0, False),
        ((600.0, 20.0, 20.0, 20.0), "100%", 40.0, False),
        ((600.0, 30.0, 30.0, 30.0), "100%", 60.0, True),
        ((600.0, 30.0), 2, 60.0, True),
        ((600.0,), 0, 0.0, True),
        ((600.0,), "100%", START_TIMEOUT, True),
    ],
)
def test_old_pods_stay_until_the_new_ones_can_take_their_agents(
    ready_for: tuple[float, ...], surge: object, seconds: float, promoted: bool
) -> None:
    new = [pod(f"new-{n}", "new", ready_for=one) for n, one in enumerate(ready_for)]
    seen = replace(fleet(*new, *(pod(f"old-{n}", "a", 100) for n in range(4))), replicas=4, canary=False)
    rolling = msgspec.structs.replace(GATEWAY.rolling_update, max_surge=surge)
    spec = msgspec.structs.replace(GATEWAY, rolling_update=rolling)
    assert is_promoted(seen, spec, seconds) is promoted
