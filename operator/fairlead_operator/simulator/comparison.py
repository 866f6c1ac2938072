"""Runs several policies on the same traces, and shows the results. `command` calls it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Console

from fairlead.errors import ConfigError
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Tokens, TokenSecret
from fairlead_operator.api.validation import read_spec
from fairlead_operator.simulator import report
from fairlead_operator.simulator.fleet.deployment import PodStarts
from fairlead_operator.simulator.fleet.load_balancers import BALANCERS
from fairlead_operator.simulator.policies import POLICIES, TEXTS
from fairlead_operator.simulator.progress import play
from fairlead_operator.simulator.scenarios.scenario import Scenario
from fairlead_operator.simulator.scenarios.trace_file import LONGEST, MOST_AGENTS, read_trace
from fairlead_operator.simulator.scenarios.traces import TRACES
from fairlead_operator.simulator.simulation import ModelOptions, Simulation

PODS_MOST = 1000
"""The default `replicas.max`, the greatest that a LinkGateway may have, because a simulation should find out how many
pods are needed."""


def compare(arguments: Sequence[str]) -> None:
    """Runs what the command line asks for. Raises ConfigError when that is impossible."""
    options = _parser().parse_args(arguments)
    spec, model = _spec(options), _model(options)
    if options.plots is not None:
        from fairlead_operator.simulator.plots import draw, require

        require()
    console = Console()
    runs: list[report.Run] = []
    for scenario in _scenarios(options):
        names = options.policy or list(POLICIES)
        runs += [_run(scenario, name, spec, model, options.quiet) for name in names]
        console.print(report.table(scenario, runs[-len(names) :]))
        if options.plots is not None:
            console.print(f"plot: {draw(options.plots, scenario, runs[-len(names) :])}")
    if options.json is not None:
        options.json.write_bytes(report.to_json(runs, spec, model))
        console.print(f"figures: {options.json}")


def _run(scenario: Scenario, name: str, spec: LinkGatewaySpec, model: ModelOptions, quiet: bool) -> report.Run:
    simulation = Simulation(scenario, spec, POLICIES[name](spec, scenario.agents), model)
    if quiet:
        simulation.run()
    else:
        play(simulation, f"{scenario.name}, {name}", scenario.seconds)
    return report.Run.of(scenario, name, simulation)


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    if options.trace_file:
        if options.trace:
            raise ConfigError("both --trace and --trace-file were given: one of them is expected")
        return [read_trace(path) for path in options.trace_file]
    names = options.trace or ["day"]
    if "all" in names:
        names = list(TRACES)
    return [TRACES[name](options.agents, round(options.hours * 3600)) for name in names]


def _spec(options: argparse.Namespace) -> LinkGatewaySpec:
    """The LinkGateway of `--spec`, or one with all defaults; the command line overrides both."""
    spec = LinkGatewaySpec(
        image="gateway",
        replicas=Replicas(max=PODS_MOST),
        redis=Redis(url="redis://none"),
        tokens=Tokens(secret_ref=TokenSecret(name="none")),
    )
    if options.spec is not None:
        spec = read_spec(_resource(options.spec))
    changed: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("capacity", "accept_rate", "target_utilisation")
        if getattr(options, name) is not None
    }
    low = spec.replicas.min if options.min is None else options.min
    high = spec.replicas.max if options.max is None else options.max
    spec = msgspec.structs.replace(spec, replicas=Replicas(min=low, max=high), **changed)
    return read_spec(msgspec.to_builtins(spec))


def _resource(path: Path) -> dict[str, Any]:
    """The spec in a file with a LinkGateway, as kubectl prints it."""
    try:
        resource = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigError(f"cannot read {path}: {e}") from e
    spec = resource.get("spec") if isinstance(resource, dict) else None
    if not isinstance(spec, dict):
        raise ConfigError(f"{path} has no spec: a LinkGateway was expected (kubectl get lgw/edge -o yaml)")
    return spec


def _model(options: argparse.Namespace) -> ModelOptions:
    median, _, p95 = options.pod_start.partition(":")
    try:
        starts = PodStarts(float(median), float(p95 or median))
    except ValueError:
        starts = PodStarts(0, 0)
    if not 1 <= starts.median <= starts.p95 <= 3600:
        raise ConfigError(f"--pod-start {options.pod_start}: a median and a 95th percentile in seconds, such as 30:60")
    if not 0 <= options.lost_per_day <= 1000:
        raise ConfigError(f"--lost-per-day {options.lost_per_day:g}: a number from 0 to 1000 was expected")
    if not 1 <= options.agents <= MOST_AGENTS:
        raise ConfigError(f"--agents {options.agents}: a number from 1 to {MOST_AGENTS} was expected")
    if not 60 <= options.hours * 3600 <= LONGEST:
        raise ConfigError(f"--hours {options.hours:g}: a minute to {LONGEST // 3600} hours were expected")
    return ModelOptions(options.balancer, starts, options.lost_per_day, options.seed)


def _whole(text: str) -> int:
    """Parses a number of agents, such as 10e6 or 10_000_000."""
    return int(float(text))


def _list(entries: Mapping[str, str]) -> str:
    return "\n".join(f"  {name:<18} {text}" for name, text in entries.items())


def _parser() -> argparse.ArgumentParser:
    traces = {name: trace(1, 60).text for name, trace in TRACES.items()}
    balancers = {name: one.text for name, one in BALANCERS.items()}
    parser = argparse.ArgumentParser(
        prog="fairlead-operator simulate",
        description="Plays traces on a modelled fleet, under the operator's own decisions and under the formulas of\n"
        "other autoscalers, and compares pod-hours, closed links, full pods and waits. It touches no cluster.",
        epilog=f"traces:\n{_list(traces)}\n\npolicies:\n{_list(TEXTS)}\n\nload balancers:\n{_list(balancers)}\n\n"
        "a trace of your own, from the links that Prometheus has counted:\n"
        "  curl -G http://prometheus:9090/api/v1/query_range -d start=… -d end=… -d step=60 \\\n"
        "    --data-urlencode 'query=sum(fairlead_links)' > week.json\n"
        "  fairlead-operator simulate --trace-file week.json --spec edge.yaml --plots .",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fleet = parser.add_argument_group("traces and policies")
    fleet.add_argument("--trace", action="append", choices=[*TRACES, "all"], help="default: day; may be repeated")
    fleet.add_argument(
        "--trace-file", action="append", type=Path, metavar="FILE", help="CSV or JSON with the links of a real fleet"
    )
    fleet.add_argument(
        "--agents", type=_whole, default=1_000_000, help="number of agents in the built-in traces (1,000,000)"
    )
    fleet.add_argument("--hours", type=float, default=24.0, help="length of the built-in traces (24)")
    fleet.add_argument("--policy", action="append", choices=list(POLICIES), help="default: all; may be repeated")
    gateway = parser.add_argument_group("the LinkGateway")
    gateway.add_argument("--spec", type=Path, metavar="FILE", help="a LinkGateway in YAML; all defaults without it")
    for name, text in (
        ("capacity", "links that one pod takes"),
        ("accept-rate", "new links that one pod accepts per second"),
        ("target-utilisation", "percentage of the capacity up to which pods are filled"),
        ("min", "replicas.min"),
        ("max", f"replicas.max ({PODS_MOST} without --spec)"),
    ):
        gateway.add_argument(f"--{name}", type=int, metavar="NUMBER", help=text)
    _add_model_options(parser.add_argument_group("the model"))
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="writes all figures, and a sample for each minute")
    output.add_argument("--plots", type=Path, metavar="FOLDER", help="draws an SVG for each trace (needs matplotlib)")
    output.add_argument("--quiet", action="store_true", help="hides the progress")
    return parser


def _add_model_options(model: argparse._ArgumentGroup) -> None:
    model.add_argument(
        "--balancer",
        choices=list(BALANCERS),
        default="random",
        help="how connections are spread over the pods (%(default)s)",
    )
    model.add_argument("--pod-start", default="30:60", metavar="MEDIAN:P95", help="seconds to readiness (%(default)s)")
    model.add_argument(
        "--lost-per-day",
        type=float,
        default=1.0,
        metavar="NUMBER",
        help="links that an agent loses by chance (%(default)s)",
    )
    model.add_argument("--seed", type=int, default=1, help="the same seed repeats a run exactly (%(default)s)")
