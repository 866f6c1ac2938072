"""The observation of a Deployment and its pods, and when a status is written. Without a cluster."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from fairlead.fleet.node_table import NodeRow
from fairlead_operator.api.gateway_status import DecisionReport, LinkGatewayStatus
from fairlead_operator.autoscaler.known_exclusions import KnownExclusions
from fairlead_operator.autoscaler.observation import NodeMetrics, PodObservation, observe_fleet
from fairlead_operator.kube.machine import Machine, missing_machine, read_machine
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.workload_status import FirstSeen, RolloutWatch
from fairlead_operator.runtime.reports.pass_report import says_more

SETTLED = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3}


def deployment(**status: object) -> Object:
    return {"metadata": {"generation": 2}, "spec": {"replicas": 3, "template": {}}, "status": {**SETTLED, **status}}


def pod(name: str, *, ready: bool = True, phase: str = "Running", **meta: object) -> Object:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", **meta},
        "status": {"phase": phase, "conditions": conditions},
    }


def row(node: str, at: int, links: int, excluded_by: str = "") -> NodeRow:
    fields: dict[bytes, object] = {b"at": at, b"links": links, b"capacity": 100, b"in_flight": 2, b"refused": 4}
    fields[b"excluded_by"] = excluded_by
    return NodeRow.parse(node, {name: str(value).encode() for name, value in fields.items()})


def test_observation_has_the_pods_with_their_reports_and_no_evicted_ones() -> None:
    nodes = NodeMetrics({"a": row("a", 9_000, 7), "somebody-elses": row("somebody-elses", 9_000, 9)}, now=10_500)
    pods = [
        pod("b", ready=False), pod("a"), pod("c", deletionTimestamp="2026-01-01T00:00:00Z"), pod("d", phase="Failed"),
    ]  # fmt: skip
    fleet = observe_fleet(deployment(), pods, nodes, FirstSeen(), 0.0)
    assert [(one.name, one.ready, one.leaving, one.age) for one in fleet.pods] == [
        ("a", True, False, 1.5), ("b", False, False, math.inf), ("c", True, True, math.inf),
    ]  # fmt: skip
    reported = fleet.pods[0]
    assert (reported.links, reported.capacity, reported.commands, reported.refused) == (7, 100, 2, 4)
    assert (fleet.replicas, fleet.readable, fleet.rollout) == (3, True, False)
    assert not observe_fleet(deployment(), pods, None, FirstSeen(), 0.0).readable


def test_ready_time_counts_from_the_first_observation_and_again_after_a_failure() -> None:
    nodes, ready_pods = NodeMetrics({}, now=0), FirstSeen()

    def ready_for(now: float, *, ready: bool = True) -> float:
        return observe_fleet(deployment(), [pod("a", ready=ready)], nodes, ready_pods, now).pods[0].ready_for

    assert [ready_for(100), ready_for(130)] == [0, 30]
    assert ready_for(140, ready=False) == 0
    assert [ready_for(150), ready_for(155)] == [0, 5]
    observe_fleet(deployment(), [], nodes, ready_pods, 160.0)
    assert ready_for(170) == 0  # a pod that is gone is forgotten


def test_a_pod_that_leaves_new_links_to_others_can_serve_although_it_is_unready() -> None:
    nodes, ready_pods = NodeMetrics({}, now=20_000), FirstSeen()

    def observe(now: float, *, ready: bool, at: int = 19_000, excluded_by: str = "") -> PodObservation:
        nodes = NodeMetrics({"a": row("a", at, 7, excluded_by)}, now=20_000)
        return observe_fleet(deployment(), [pod("a", ready=ready)], nodes, ready_pods, now).pods[0]

    assert observe(0, ready=True).takes_links
    leaving_its_service = observe(30, ready=True, excluded_by="rebalance")
    assert (leaving_its_service.ready, leaving_its_service.takes_links) == (True, False)
    excluded = observe(60, ready=False, excluded_by="rebalance")
    assert (excluded.ready, excluded.ready_for, excluded.takes_links) == (True, 60, False)
    assert not observe(70, ready=False).ready, "unready for a reason of its own"
    assert not observe(80, ready=False, at=4_000, excluded_by="rebalance").ready, "its node has been silent for 16 s"
    assert not observe_fleet(deployment(), [pod("a", ready=False)], nodes, ready_pods, 90).pods[0].ready


def test_excluded_pods_count_as_ready_while_redis_cannot_be_read_as_long_as_they_can_be_excluded() -> None:
    known = KnownExclusions()
    pods = [pod("a", ready=False), pod("b"), pod("silent", ready=False), pod("ill", ready=False)]

    def ready(nodes: NodeMetrics | None, now: float) -> dict[str, tuple[bool, str]]:
        excluded = known.observe(nodes, now)
        fleet = observe_fleet(deployment(), pods, nodes, FirstSeen(), now, excluded=excluded)
        return {one.name: (one.ready, one.excluded_by) for one in fleet.pods if one.ready or one.excluded_by}

    rows = {
        "a": row("a", 19_000, 7, "rebalance"), "b": row("b", 19_000, 7), "silent": row("silent", 4_000, 7, "rollout"),
        "ill": row("ill", 19_000, 7),
    }  # fmt: skip
    assert ready(None, 0) == {"b": (True, "")}, "nothing is known yet"
    assert ready(NodeMetrics(rows, now=20_000), 10)["a"] == (True, "rebalance")
    for now in (20, 50):
        assert ready(None, now) == {"a": (True, "rebalance"), "b": (True, "")}
    assert ready(None, 51) == {"b": (True, "")}, "nobody has repeated it for more than 30 s"
    ready(NodeMetrics({**rows, "a": row("a", 59_000, 7)}, now=60_000), 60)
    assert ready(None, 61) == {"b": (True, "")}, "it took new links when the rows were last read"


def node(name: str, zone: str, *, ready: str = "True", **spec: object) -> Object:
    conditions = [{"type": "Ready", "status": ready}]
    labels = {"topology.kubernetes.io/zone": zone}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"conditions": conditions}}


def test_a_pod_is_observed_on_its_machine_with_its_zone() -> None:
    machines = {"m1": read_machine(node("m1", "a")), "m2": missing_machine("m2")}
    pods = [
        pod("scheduled") | {"spec": {"nodeName": "m1"}},
        pod("elsewhere") | {"spec": {"nodeName": "m3"}},
        pod("labelled", labels={"topology.kubernetes.io/zone": "b"}) | {"spec": {"nodeName": "m3"}},
        pod("orphan") | {"spec": {"nodeName": "m2"}},
        pod("waiting"),
    ]
    observed = observe_fleet(deployment(), pods, None, FirstSeen(), 0.0, machines=machines)
    assert {one.name: one.machine for one in observed.pods} == {
        "scheduled": Machine("m1", "a"),
        "elsewhere": Machine("m3"),
        "labelled": Machine("m3", "b"),
        "orphan": Machine("m2", closed="gone"),
        "waiting": Machine(),
    }


@pytest.mark.parametrize(
    ("spec", "ready", "closed"),
    [
        ({}, "True", ""),
        ({"unschedulable": True}, "True", "cordoned"),
        ({}, "Unknown", "not ready"),
        ({"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}, "True", ""),
        ({"taints": [{"key": "karpenter.sh/disrupted"}], "unschedulable": True}, "True", "about to be removed"),
    ],
)
def test_a_machine_is_closed_by_what_kubernetes_says_of_it(spec: dict[str, Any], ready: str, closed: str) -> None:
    assert read_machine(node("m", "a", ready=ready, **spec)).closed == closed


@pytest.mark.parametrize(
    ("status", "rolling"), [({}, False), ({"observedGeneration": 1}, True), ({"updatedReplicas": 2}, True)]
)
def test_rollout_is_recognised_by_the_deployments_status(status: dict[str, Any], rolling: bool) -> None:
    assert RolloutWatch().is_rolling_out(deployment(**status)) is rolling


@pytest.mark.parametrize(("changed", "rolling"), [({"replicas": 9}, False), ({"template": {"metadata": {}}}, True)])
def test_a_change_that_its_controller_has_not_seen_is_a_rollout_if_it_is_one_of_the_template(
    changed: dict[str, Any], rolling: bool
) -> None:
    watch, before = RolloutWatch(), deployment()
    assert not watch.is_rolling_out(before)
    meta = {**before["metadata"], "generation": before["metadata"]["generation"] + 1}
    after = {**before, "metadata": meta, "spec": {**before["spec"], **changed}}
    assert watch.is_rolling_out(after) is rolling
    assert RolloutWatch().is_rolling_out(after), "a new leader does not know the template from before"
    seen = {**after, "status": {**after["status"], "observedGeneration": meta["generation"]}}
    assert not watch.is_rolling_out(seen), "all pods are counted as updated"
    assert not watch.is_rolling_out({**after, "spec": {**after["spec"], "replicas": 4}}), "the template that was seen"


def test_status_is_written_after_a_change_or_a_minute() -> None:
    def status(at: str, links: int = 5) -> LinkGatewayStatus:
        decision = DecisionReport(at=f"2026-01-01T{at}Z", action="Stay", replicas=2, winner="min", reason="r")
        return LinkGatewayStatus(links=links, decision=decision)

    before = status("10:00:00")
    assert not says_more(before, status("10:00:59"))
    assert says_more(before, status("10:01:00"))
    assert says_more(before, status("10:00:01", links=6))
    assert says_more(before, msgspec.structs.replace(before, decision=None))
