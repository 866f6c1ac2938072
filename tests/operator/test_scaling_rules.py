"""The scaling rules one by one: what each requires, and what the status, the metrics and the documentation rely on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.api.scaling_signals import ScalingSignals
from fairlead_operator.autoscaler.decision import decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rules import RULES
from fairlead_operator.autoscaler.rules.cpu import CpuRule
from fairlead_operator.autoscaler.rules.failure_tolerance import FailureToleranceRule
from fairlead_operator.autoscaler.rules.loop_lag import LoopLagRule
from fairlead_operator.autoscaler.rules.memory import MemoryRule
from fairlead_operator.autoscaler.rules.open_commands import CommandsInFlightRule
from fairlead_operator.autoscaler.rules.reconnect import ReconnectRule
from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule, SignalRule
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
    inputs = msgspec.structs.replace(now.inputs, growth=20.0, growing_seconds=80.0, rejects=3.0, lead_seconds=40.0)
    growing = replace(now, inputs=inputs)
    assert UtilisationRule().required_pods(growing) == 3  # (700 + 23 × 40) at 70 %
    begun = replace(now, inputs=msgspec.structs.replace(inputs, growing_seconds=20.0))
    assert UtilisationRule().required_pods(begun) == 2  # (700 + 20 × 10 + 3 × 40) at 70 %
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


def loaded(signals: ScalingSignals, looks: int = 1, **load: Any) -> Snapshot:
    """Four pods that have reported this load `looks` times, once in ten seconds."""
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(signals=signals))
    pods = tuple(replace(PodObservation(f"p{i}", age=1.0, links=10, capacity=1000), **load) for i in range(4))
    fleet, history = FleetObservation(4, pods), History()
    for i in range(looks):
        history = history.observe(fleet, i * 10.0)
    return take_snapshot(fleet, history, spec, (looks - 1) * 10.0)


@pytest.mark.parametrize(
    ("rule", "signals", "load", "required"),
    [
        (CommandsInFlightRule(), ScalingSignals(commands_per_pod=100), {"commands": 225}, 9),
        (CommandsInFlightRule(), ScalingSignals(), {"commands": 225}, 0),
        (CpuRule(), ScalingSignals(cpu_percent=50), {"cpu": 0.75}, 6),
        (MemoryRule(), ScalingSignals(memory_percent=80), {"memory": 0.9}, 5),
        (LoopLagRule(), ScalingSignals(loop_lag_millis=20), {"lag_ms": 25.0}, 5),
        (LoopLagRule(), ScalingSignals(loop_lag_millis=20), {"lag_ms": 5000.0}, 6),  # at most half as many more
        (LoopLagRule(), ScalingSignals(loop_lag_millis=20), {"lag_ms": 5.0}, 1),
    ],
)
def test_signal_requires_pods_by_its_target(
    rule: SignalRule, signals: ScalingSignals, load: dict[str, Any], required: int
) -> None:
    found = loaded(signals, **load)
    assert rule.required_pods(found) == required
    reason = rule.evaluate(found).reason
    assert (f"it takes {required} pod" in reason) or reason == f"scaling.signals.{rule.setting} is not set"


@given(st.floats(0, 1), st.floats(0, 1), st.integers(10, 95))
def test_more_of_a_signal_never_requires_fewer_pods(less: float, more: float, percent: int) -> None:
    less, more = sorted((less, more))
    signals = ScalingSignals(cpu_percent=percent, memory_percent=percent, loop_lag_millis=percent / 10)
    pairs: tuple[tuple[SignalRule, str], ...] = (
        (CpuRule(), "cpu"),
        (MemoryRule(), "memory"),
        (LoopLagRule(), "lag_ms"),
    )
    for rule, field in pairs:
        some, others = (rule.required_pods(loaded(signals, 1, **{field: value})) for value in (less, more))
        assert some <= others


def test_one_high_report_among_low_ones_requires_little() -> None:
    history = loaded(ScalingSignals(), looks=5, cpu=0.1).history
    busy = tuple(replace(pod, cpu=1.0) for pod in loaded(ScalingSignals()).fleet.pods)
    history = history.observe(FleetObservation(4, busy), 50.0)
    assert history.signals.cpu == pytest.approx(0.4 + 3.6 * (1 - math.exp(-1 / 3)))
    silent = FleetObservation(4, tuple(replace(pod, age=60.0) for pod in busy))
    assert history.observe(silent, 60.0).signals == history.signals


def test_signal_wins_when_it_requires_the_most() -> None:
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(signals=ScalingSignals(commands_per_pod=10)))
    decision = decide(loaded(ScalingSignals(), commands=20).fleet, History(), spec, 0.0)
    assert (decision.target.winner, decision.replicas) == ("commandsInFlight", 8)
    assert decision.reason == (
        "it takes 8 pods to run the commands in flight, at most scaling.signals.commandsPerPod on each pod "
        "(the total is 80, and a pod takes 10)"
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_a_rule_has_a_name_and_a_reason(rule: ScalingRule) -> None:
    reason = rule.evaluate(snapshot(1)).reason
    assert reason.startswith(("it takes ", "scaling."))  # or which setting it would follow
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
