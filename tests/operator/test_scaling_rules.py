"""The scaling rules one by one: what each requires, and what the status, the metrics and the documentation rely on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.autoscaler.decision import decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rules import RULES
from fairlead_operator.autoscaler.rules.failure_tolerance import FailureToleranceRule
from fairlead_operator.autoscaler.rules.reconnect import ReconnectRule
from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.rules.utilisation import UtilisationRule
from fairlead_operator.autoscaler.snapshot import Snapshot, take_snapshot
from fairlead_operator.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    accept_rate=10,
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)


def snapshot(*links: int, spec: LinkGatewaySpec = SPEC) -> Snapshot:
    """A snapshot of pods that have just reported these links, without any history."""
    pods = tuple(PodObservation(f"p{i}", age=1.0, links=count, capacity=1000) for i, count in enumerate(links))
    fleet = FleetObservation(len(links), pods)
    return take_snapshot(fleet, History().observe(fleet, 0.0), spec, 0.0)


@pytest.mark.parametrize(
    ("links", "utilisation"), [((), 0), ((1,), 1), ((700,), 1), ((701,), 2), ((500, 201), 2), ((0, 0, 0), 0)]
)
def test_utilisation_holds_the_links_at_the_target(links: tuple[int, ...], utilisation: int) -> None:
    assert UtilisationRule().required_pods(snapshot(*links)) == utilisation


def test_utilisation_looks_ahead_by_the_lead_time() -> None:
    now = snapshot(700)
    growing = replace(now, inputs=msgspec.structs.replace(now.inputs, growth=20.0, rejects=3.0, lead_seconds=40.0))
    assert UtilisationRule().required_pods(growing) == 3  # (700 + 23 × 40) at 70 %
    shrinking = replace(now, inputs=msgspec.structs.replace(now.inputs, growth=-20.0))
    assert UtilisationRule().required_pods(shrinking) == 1


@pytest.mark.parametrize(
    ("links", "failures", "required"), [(0, 1, 1), (950, 1, 2), (951, 1, 3), (951, 0, 2), (951, 3, 5)]
)
def test_failure_tolerance_adds_the_pods_that_may_fail(links: int, failures: int, required: int) -> None:
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(failure_tolerance=failures))
    assert FailureToleranceRule().required_pods(snapshot(links, spec=spec)) == required


@pytest.mark.parametrize(("links", "required"), [(0, 0), (1000, 1), (1001, 2), (5000, 5)])
def test_reconnect_needs_pods_that_accept_all_links_in_time(links: int, required: int) -> None:
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(reconnect_seconds=100))
    assert ReconnectRule().required_pods(snapshot(links, spec=spec)) == required


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_a_rule_has_a_name_and_a_reason(rule: ScalingRule) -> None:
    reason = rule.evaluate(snapshot(1)).reason
    assert reason.startswith("it takes ")
    assert "`" not in reason
    assert f"| `{rule.name}` | {rule.purpose} |" in (ROOT / "docs" / "operator.md").read_text()


def test_every_rule_of_the_folder_is_in_the_list() -> None:
    folder = ROOT / "operator" / "fairlead_operator" / "autoscaler" / "rules"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "scaling_rule"}
    assert files == {type(rule).__module__.rpartition(".")[2] for rule in RULES}


def test_names_are_unique_and_none_is_that_of_an_override() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert not set(names) & {"min", "max", "external"}


def test_every_rule_is_in_the_decision_and_in_the_metrics() -> None:
    decision = decide(
        FleetObservation(1, (PodObservation("p", age=1.0, links=700, capacity=1000),)), History(), SPEC, 0.0
    )
    assert [rule.name for rule in decision.rules] == [rule.name for rule in RULES]
    metrics = Metrics()
    metrics.of("fleet", "edge").observe(decision, FleetObservation(1, ()), 1)
    for rule in decision.rules:
        labels = {"namespace": "fleet", "gateway": "edge", "rule": rule.name}
        assert metrics.registry.get_sample_value("fairlead_operator_rule_replicas", labels) == rule.replicas
    metrics.forget("fleet", "edge")
    labels = {"namespace": "fleet", "gateway": "edge", "rule": RULES[0].name}
    assert metrics.registry.get_sample_value("fairlead_operator_rule_replicas", labels) is None


def test_of_rules_that_require_the_same_the_first_wins() -> None:
    alone = msgspec.structs.replace(SPEC, replicas=Replicas(min=1), scaling=Scaling(failure_tolerance=0))
    decision = decide(snapshot(700).fleet, History(), alone, 0.0)
    strongest = [rule.name for rule in decision.rules if rule.replicas == decision.required == 1]
    assert len(strongest) > 1
    assert decision.target.winner == strongest[0]
