"""Which pods take new links during a rollout, without a cluster: when those of the new revision alone do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.decision import decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rollout import REFUSAL_MEMORY, LinkDirection, RolloutHistory, direct_links
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.workload_status import current_revision

from support.decisions import PodFields

SPEC = msgspec.convert(
    {"image": "gateway:1", "redis": {"url": "redis://r"}, "tokens": {"secretRef": {"name": "t"}}, "capacity": 1000,
     "replicas": {"min": 2, "max": 50}},
    LinkGatewaySpec,
)  # fmt: skip
PERIOD = 10.0


def pods(revision: str, *links: int, **more: Unpack[PodFields]) -> list[PodObservation]:
    one = replace(PodObservation("", age=1.0, capacity=1000, revision=revision), **more)
    return [replace(one, name=f"{revision}-{n}", links=count) for n, count in enumerate(links)]


def rollout(replicas: int, *found: list[PodObservation]) -> FleetObservation:
    return FleetObservation(replicas, tuple(pod for some in found for pod in some), rollout=True, revision="new")


def direct(
    fleet: FleetObservation,
    history: RolloutHistory | None = None,
    spec: LinkGatewaySpec = SPEC,
    now: float = 0.0,
    links: History | None = None,
) -> tuple[LinkDirection, RolloutHistory]:
    observed = (history or RolloutHistory()).observe(fleet, now)
    inputs = decide(fleet, links or History(), spec, now).inputs
    return direct_links(fleet, inputs, observed, spec, now), observed


@pytest.mark.parametrize(
    ("fleet", "reason"),
    [
        (rollout(4, pods("old", 700, 700, 700, 700), pods("new", 0, 0, 0)), "3 of 4 pods of the new revision new"),
        (rollout(6, pods("old", *[300] * 6), pods("new", 0, 0)), "2 of 3 pods"),  # 1,800 links fill two, one may die
        (rollout(2, pods("old", 0, 0), pods("new", 0)), "1 of 2 pods"),  # replicas.min
        (rollout(2, pods("old", 9, 9), pods("new", 0), pods("new", 0, ready=False)), "1 of 2 pods"),
        (rollout(2, pods("old", 9, 9), pods("new", 0), pods("new", 0, leaving=True)), "1 of 2 pods"),
        (rollout(2, pods("old", 9, 9), pods("new", 960, 950)), "the 2 pods of the new revision new are full"),
        (replace(rollout(2, pods("new", 0, 0)), rollout=False), "no rollout is in progress"),
        (replace(rollout(2, pods("old", 9, 9), pods("new", 0, 0)), revision=""), "is not known yet"),
        (replace(rollout(2, pods("old", 9, 9), pods("new", 0, 0)), readable=False), "Redis cannot be read"),
    ],
)
def test_pods_of_all_revisions_take_new_links(fleet: FleetObservation, reason: str) -> None:
    direction, _ = direct(fleet)
    assert direction.revision == ""
    assert reason in direction.reason


@pytest.mark.parametrize(
    ("fleet", "count"),
    [
        (rollout(4, pods("old", 700, 700, 700, 700), pods("new", 0, 0, 0, 0)), 4),
        (rollout(4, pods("old", 700, ready=False), pods("new", 700, 700, 700, 0)), 4),
        (rollout(6, pods("old", *[300] * 6), pods("new", 0, 0, 0)), 3),
    ],
)
def test_new_pods_take_all_new_links_when_they_can_hold_the_fleet(fleet: FleetObservation, count: int) -> None:
    direction, _ = direct(fleet)
    assert direction == LinkDirection("new", f"the {count} pods of the new revision new take all new links")


def test_refusals_of_new_pods_give_the_old_ones_new_links_for_a_while() -> None:
    def fleet(refused: int, old: int = 0) -> FleetObservation:
        return rollout(2, pods("old", 9, 9, refused=old), pods("new", 0, 0, refused=refused))

    direction, history = direct(fleet(0, old=5))
    assert direction.revision == "new"
    direction, history = direct(fleet(0, old=50), history, now=10)
    assert direction.revision == "new", "old pods that refuse links are a reason for the new ones"
    direction, history = direct(fleet(1, old=50), history, now=20)
    assert direction == LinkDirection("", "pods of the new revision new refuse links")
    for now in (30, 40):
        direction, history = direct(fleet(1), history, now=now)
        assert direction.revision == ""
    assert direct(fleet(1), history, now=20 + REFUSAL_MEMORY)[0].revision == "new"
    assert direct(fleet(2), history, now=20 + REFUSAL_MEMORY)[0].revision == ""


def test_next_rollout_begins_without_the_refusals_of_the_last() -> None:
    _, history = direct(rollout(2, pods("old", 9, 9), pods("new", 0, 0, refused=3)))
    later = replace(rollout(2, pods("new", 9, 9, refused=7), pods("newer", 0, 0)), revision="newer")
    assert direct(later, history, now=10)[0].revision == "newer"


observations = st.builds(
    PodObservation,
    name=st.just(""),
    ready=st.booleans(),
    leaving=st.booleans(),
    age=st.sampled_from([1.0, 1.0, 60.0, math.inf]),
    links=st.integers(0, 1000),
    capacity=st.just(1000),
    refused=st.integers(0, 3),
    revision=st.sampled_from(["old", "older", "new", "new"]),
)
fleets = st.builds(
    FleetObservation,
    replicas=st.integers(1, 8),
    pods=st.lists(observations, max_size=12).map(
        lambda found: tuple(replace(pod, name=f"p{n}") for n, pod in enumerate(found))
    ),
    readable=st.booleans(),
    rollout=st.booleans(),
    revision=st.sampled_from(["", "new", "new", "new"]),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(fleets, min_size=1, max_size=6))
def test_direction_for_any_history_leaves_enough_pods_that_take_links(looks: list[FleetObservation]) -> None:
    """Only the current revision is ever preferred, and only while its ready pods could hold what the fleet has."""
    history, links = RolloutHistory(), History()
    refused_before: dict[str, int] = {}
    for look, fleet in enumerate(looks):
        now = look * PERIOD
        links = decide(fleet, links, SPEC, now).history
        direction, history = direct(fleet, history, now=now, links=links)
        assert direction.reason
        new = [pod for pod in fleet.fresh_pods if pod.revision == "new"]
        seen = fleet.rollout and fleet.revision == "new" and fleet.readable
        refused = seen and any(pod.refused > refused_before.get(pod.name, 0) for pod in new)
        if not fleet.rollout:
            refused_before = {}
        elif seen:
            refused_before |= {pod.name: pod.refused for pod in new}
        if not direction.revision:
            continue
        assert (direction.revision, fleet.rollout) == (fleet.revision, True)
        assert not refused
        taking = [pod for pod in new if pod.ready and not pod.leaving]
        assert len(taking) >= min(fleet.replicas, SPEC.replicas.min)
        assert sum(pod.links for pod in taking) < 0.95 * 1000 * len(taking)
        everything = sum(pod.links for pod in fleet.fresh_pods)
        survivors = len(taking) - SPEC.scaling.failure_tolerance
        assert everything <= 0.95 * 1000 * survivors or len(taking) >= fleet.replicas


@settings(deadline=None)
@given(fleets, st.integers(1, 3))
def test_more_new_pods_never_take_the_preference_away(fleet: FleetObservation, more: int) -> None:
    fleet = replace(fleet, pods=tuple(replace(pod, refused=0) for pod in fleet.pods))
    larger = replace(fleet, pods=(*fleet.pods, *pods("new", *[0] * more)))
    if direct(fleet)[0].revision:
        assert direct(larger)[0].revision


def deployment(*, number: str = "2", generation: int = 3) -> Object:
    meta = {"uid": "d", "generation": generation, "annotations": {"deployment.kubernetes.io/revision": number}}
    return {"metadata": meta, "spec": {}, "status": {"observedGeneration": 3}}


def replica_set(revision: str, number: str, owner: str = "d") -> Object:
    meta: Object = {"ownerReferences": [{"uid": owner}], "labels": {"pod-template-hash": revision}}
    return {"metadata": meta | {"annotations": {"deployment.kubernetes.io/revision": number}}}


def test_current_revision_is_that_of_the_replica_set_with_the_deployments_number() -> None:
    found = [replica_set("b", "2", owner="other"), replica_set("a", "1"), replica_set("c", "2")]
    assert current_revision(deployment(), found) == "c"
    assert current_revision(deployment(number="1"), found) == "a", "a rollback takes an old ReplicaSet again"
    assert current_revision(deployment(number="3"), found) == ""
    assert current_revision(deployment(generation=4), found) == "", "its controller has not seen the new template"
