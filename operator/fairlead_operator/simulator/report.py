"""The figures of a run, as a table for people and as JSON for programs. `comparison` calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich import box
from rich.table import Table

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.simulator.measures import Sample, percentile
from fairlead_operator.simulator.policies.hpa import HorizontalPodAutoscaler
from fairlead_operator.simulator.scenarios.scenario import Scenario
from fairlead_operator.simulator.simulation import DAY, ModelOptions, Simulation


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one policy on one trace. The same seed reproduces everything but the `cpu…` figures."""

    trace: str
    policy: str
    agents: int
    seconds: int
    pod_hours: float
    """The sum over all pods, including those that start and those that leave."""
    most_pods: int
    greatest_closes_per_second: int
    """The most links that were moved or closed in one second because of a scale-down, a rollout or a rebalance."""
    moves_per_agent_day: float
    """These links, per agent and day for which the agent wanted a link."""
    hot_seconds: int
    """Seconds in which a pod had more than 95 % of its capacity."""
    greatest_share: float
    """The links of the fullest pod at any time, as a share of its capacity."""
    refused: int
    """Attempts that were answered 503 or 429."""
    wait_p99_seconds: int
    """How long the agents that had to wait for a link waited."""
    unlinked_share: float
    """Share of the time for which agents wanted a link and had none."""
    decisions: int
    cpu_per_decision_ms: float
    cpu_longest_decision_ms: float
    samples: list[Sample]

    @classmethod
    def of(cls, scenario: Scenario, policy: str, simulation: Simulation) -> Run:
        seen, cost = simulation.measures, simulation.cost
        return cls(
            trace=scenario.name,
            policy=policy,
            agents=scenario.agents,
            seconds=seen.seconds,
            pod_hours=seen.pod_seconds / 3600,
            most_pods=seen.most_pods,
            greatest_closes_per_second=seen.greatest_closes,
            moves_per_agent_day=seen.closes * DAY / max(1, seen.agent_seconds),
            hot_seconds=seen.hot_seconds,
            greatest_share=seen.greatest_share,
            refused=seen.refused,
            wait_p99_seconds=percentile(simulation.queue.waits),
            unlinked_share=seen.unlinked_seconds / max(1, seen.agent_seconds),
            decisions=cost.decisions,
            cpu_per_decision_ms=1000 * cost.seconds / max(1, cost.decisions),
            cpu_longest_decision_ms=1000 * cost.longest,
            samples=seen.samples,
        )


ROWS: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("pod-hours", lambda run: f"{run.pod_hours:,.1f}"),
    ("most pods", lambda run: f"{run.most_pods:,}"),
    ("links closed in one second, most", lambda run: f"{run.greatest_closes_per_second:,}"),
    ("moves per agent and day", lambda run: f"{run.moves_per_agent_day:.2f}"),
    ("seconds with a pod above 95 %", lambda run: f"{run.hot_seconds:,}"),
    ("fullest pod", lambda run: f"{run.greatest_share:.0%}"),
    ("refused attempts", lambda run: f"{run.refused:,}"),
    ("wait for a link, p99", lambda run: f"{run.wait_p99_seconds} s"),
    ("time without a link", lambda run: f"{run.unlinked_share:.3%}"),
    ("CPU of a decision", lambda run: f"{run.cpu_per_decision_ms:.1f} ms"),
)


def table(scenario: Scenario, runs: Sequence[Run]) -> Table:
    """The runs of one trace beside one another, a column each."""
    shown = Table(
        title=f"{scenario.name}: {scenario.text}\n{scenario.agents:,} agents, {scenario.seconds / 3600:g} h",
        box=box.SIMPLE,
        title_justify="left",
    )
    shown.add_column("")
    for run in runs:
        shown.add_column(run.policy, justify="right")
    for name, text in ROWS:
        shown.add_row(name, *(text(run) for run in runs))
    hpa = next((run.pod_hours for run in runs if run.policy == HorizontalPodAutoscaler.name), None)
    if hpa:
        shown.add_row("pod-hours, of those of hpa", *(f"{run.pod_hours / hpa:.2f} ×" for run in runs))
    return shown


def to_json(runs: Sequence[Run], spec: LinkGatewaySpec, model: ModelOptions) -> bytes:
    """All figures, with the spec and the model from which they result."""
    document: dict[str, Any] = {
        "spec": {
            "capacity": spec.capacity,
            "acceptRate": spec.accept_rate,
            "targetUtilisation": spec.target_utilisation,
            "replicas": spec.replicas,
            "scaling": spec.scaling,
        },
        "model": model,
        "sampleFields": Sample._fields,
        "runs": runs,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)
