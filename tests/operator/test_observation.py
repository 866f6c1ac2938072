"""What is read out of a Deployment and its pods, and when a status is worth writing. No cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead_operator.api.gateway_status import DecisionReport, LinkGatewayStatus
from fairlead_operator.autoscaler.history import NodeReport
from fairlead_operator.autoscaler.observation import is_rolling, observe_fleet
from fairlead_operator.kube.objects import Object
from fairlead_operator.runtime.status import changed

SETTLED = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3}


def deployment(**status: object) -> Object:
    return {"metadata": {"generation": 2}, "spec": {"replicas": 3}, "status": {**SETTLED, **status}}


def pod(name: str, *, ready: bool = True, phase: str = "Running", **meta: object) -> Object:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", **meta},
        "status": {"phase": phase, "conditions": conditions},
    }


def test_pods_as_they_are_and_the_evicted_not_at_all() -> None:
    rows = {"a": NodeReport(1.0, 7, 100), "somebody-elses": NodeReport(1.0, 9, 100)}
    pods = [
        pod("b", ready=False), pod("a"), pod("c", deletionTimestamp="2026-01-01T00:00:00Z"), pod("d", phase="Failed"),
    ]  # fmt: skip
    load = observe_fleet(deployment(), pods, rows, {}, 0.0)
    assert [(one.name, one.ready, one.leaving, one.row) for one in load.pods] == [
        ("a", True, False, rows["a"]), ("b", False, False, None), ("c", True, True, None),
    ]  # fmt: skip
    assert (load.replicas, load.readable, load.rollout) == (3, True, False)
    assert not observe_fleet(deployment(), pods, None, {}, 0.0).readable


def test_how_long_a_pod_is_ready_is_counted_here_and_anew_after_an_illness() -> None:
    since: dict[str, float] = {}

    def ready_for(now: float, *, ready: bool = True) -> float:
        return observe_fleet(deployment(), [pod("a", ready=ready)], {}, since, now).pods[0].ready_for

    assert [ready_for(100), ready_for(130)] == [0, 30]
    assert ready_for(140, ready=False) == 0
    assert [ready_for(150), ready_for(155)] == [0, 5]
    observe_fleet(deployment(), [], {}, since, 160.0)
    assert since == {}  # a pod that is gone is forgotten


@pytest.mark.parametrize(
    ("status", "rolling"), [({}, False), ({"observedGeneration": 1}, True), ({"updatedReplicas": 2}, True)]
)
def test_a_rollout(status: dict[str, Any], rolling: bool) -> None:
    assert is_rolling(deployment(**status)) is rolling


def test_a_status_is_written_when_it_says_something_new_or_a_minute_later() -> None:
    def status(at: str, links: int = 5) -> LinkGatewayStatus:
        decision = DecisionReport(at=f"2026-01-01T{at}Z", action="Stay", replicas=2, winner="min", reason="r")
        return LinkGatewayStatus(links=links, decision=decision)

    before = status("10:00:00")
    assert not changed(before, status("10:00:59"))
    assert changed(before, status("10:01:00"))
    assert changed(before, status("10:00:01", links=6))
    assert changed(before, msgspec.structs.replace(before, decision=None))
