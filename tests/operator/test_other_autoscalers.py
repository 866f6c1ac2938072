"""The comparison with other autoscalers in the mode DryRun: on the same reports, by their documented formulas."""

from __future__ import annotations

import msgspec
import pytest

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.autoscaler.decision import Decision, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.comparison_history import ComparisonHistory
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation

from support.operator_namespace import OperatorNamespace, condition

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    replicas=Replicas(min=1, max=20),
    scaling=Scaling(mode=Mode.DRY_RUN, failure_tolerance=1),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)


def fleet(*links: int) -> FleetObservation:
    pods = tuple(PodObservation(f"p{i}", age=1.0, links=count, capacity=1000) for i, count in enumerate(links))
    return FleetObservation(len(links), pods)


def compared(decision: Decision) -> dict[str, int]:
    return {one.name: one.replicas for one in decision.comparison}


@pytest.mark.parametrize(
    ("links", "hpa", "required"),
    [
        ((700, 700), 2, 3),  # at the target, but one of three may fail
        ((760, 760), 2, 3),  # within the tolerance of a tenth
        ((800, 800), 3, 3),
        ((1000,) * 4, 6, 6),
        ((0, 0), 1, 1),
    ],
)
def test_both_formulas_are_applied_to_the_same_reports(links: tuple[int, ...], hpa: int, required: int) -> None:
    decision = decide(fleet(*links), History(), SPEC, 0.0)
    assert compared(decision) == {"hpa": hpa, "keda": hpa}
    assert decision.required == required


def test_its_window_and_its_limit_upwards_are_remembered() -> None:
    history = decide(fleet(700, 700, 700, 700), History(), SPEC, 0.0).history
    soon = decide(fleet(100, 100, 100, 100), history, SPEC, 10.0)
    assert compared(soon) == {"hpa": 4, "keda": 4}
    assert soon.comparison[0].reason == "its formula asks for 1 pod, and it waits for its stabilization window"
    late = decide(fleet(100, 100, 100, 100), soon.history, SPEC, 301.0)
    assert compared(late) == {"hpa": 1, "keda": 1}
    full = msgspec.structs.replace(SPEC, target_utilisation=10)
    assert compared(decide(fleet(900, 900), History(), full, 0.0)) == {"hpa": 6, "keda": 6}


def test_without_reports_the_others_would_not_scale() -> None:
    unread = FleetObservation(3, (), readable=False)
    decision = decide(unread, History(), SPEC, 0.0)
    assert compared(decision) == {"hpa": 3, "keda": 3}
    assert decision.comparison[0].reason == "it has no metric, so it would not scale"


def test_nothing_is_compared_in_another_mode() -> None:
    auto = msgspec.structs.replace(SPEC, scaling=Scaling())
    history = decide(fleet(700, 700), History(), SPEC, 0.0).history
    assert history.compared != ComparisonHistory()
    decision = decide(fleet(700, 700), history, auto, 10.0)
    assert decision.comparison == ()
    assert decision.history.compared == ComparisonHistory()


async def test_dry_run_shows_the_comparison_in_status_condition_and_metrics(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(
        await namespace.gateway(scaling={"mode": "DryRun"}, replicas={"min": 1, "max": 9})
    )
    await namespace.reconcile(reconciler)
    (name,) = await namespace.run_pods(1)
    await namespace.beat(name, 900)
    status = await namespace.reconcile(reconciler)
    assert [(one["name"], one["replicas"]) for one in status["decision"]["comparison"]] == [("hpa", 2), ("keda", 2)]
    message = condition(status, "ScalingActive")[2]
    assert message.startswith("would scale Up to 2: ")
    assert message.endswith("; on the same reports hpa would set 2 pods, keda 2 pods")
    labels = {"namespace": namespace.name, "gateway": "edge", "autoscaler": "hpa"}
    assert namespace.metrics.registry.get_sample_value("fairlead_operator_compared_replicas", labels) == 2
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"scaling": {"mode": "Paused"}}})
    status = await namespace.reconcile(reconciler)
    assert "comparison" not in status["decision"] or status["decision"]["comparison"] == []
    assert namespace.metrics.registry.get_sample_value("fairlead_operator_compared_replicas", labels) is None
