"""The simulator at all sizes: what the operator and other autoscalers make of each built-in trace, and what it costs.

    python -I -m bench.moving.simulator                    every trace, 100,000 to 10 million agents: some hour of CPU
    python -I -m bench.moving.simulator --trace day --agents 10e6 --policy fairlead --policy hpa
    python -I -m bench.moving.simulator --minutes 5        only the first minutes of each: what a day would cost

Prints a table for each size and writes a JSON file, after each run. With --resume the runs that the file has are not
repeated. Each run has a process of its own, whose CPU time and greatest memory are counted, so other load on the
machine matters little. A seed repeats all other figures exactly.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.simulator.policies import POLICIES
from fairlead_operator.simulator.report import Run
from fairlead_operator.simulator.scenarios.traces import TRACES
from fairlead_operator.simulator.simulation import DAY, ModelOptions, Simulation

from bench.links.tables import table

CAPACITY, LARGE_CAPACITY = 10_000, 20_000
"""Of a pod: the default, and what 10 million agents need for a fleet of fewer than `replicas.max` pods."""
LARGE = 5_000_000
PODS_MOST = 1000
FIGURES = (
    "pod_hours", "most_pods", "greatest_closes_per_second", "moves_per_agent_day", "hot_seconds", "greatest_share",
    "refused", "wait_p99_seconds", "unlinked_share", "cpu_per_decision_ms", "cpu_longest_decision_ms",
)  # fmt: skip
HEAD = [
    "trace", "policy", "pod-hours", "of hpa's", "most pods", "closes/s", "moves/agent/day", "hot s", "fullest",
    "refused", "wait p99 s", "CPU s per day", "CPU ms per decision", "memory MB",
]  # fmt: skip


def spec(agents: int, trace: str = "") -> LinkGatewaySpec:
    """All defaults but the capacity; and a fleet that should survive the failure of a zone says so."""
    return LinkGatewaySpec(
        image="gateway",
        scaling=Scaling(zone_tolerance=int(trace == "zone")),
        capacity=LARGE_CAPACITY if agents > LARGE else CAPACITY,
        replicas=Replicas(max=PODS_MOST),
        redis=Redis(url="redis://none"),
        tokens=Tokens(secret_ref=TokenSecret(name="none")),
    )


def measure(trace: str, agents: int, policy: str, seconds: int) -> dict[str, Any]:
    """The first `seconds` of a trace of one day."""
    scenario, gateway = TRACES[trace](agents, DAY), spec(agents, trace)
    simulation = Simulation(scenario, gateway, POLICIES[policy](gateway, agents), ModelOptions())
    began = time.process_time()
    for _ in range(seconds):
        simulation.step()
    spent = time.process_time() - began
    run = Run.of(scenario, policy, simulation)
    return {
        "trace": trace, "agents": agents, "policy": policy, "seconds": seconds,
        **{figure: getattr(run, figure) for figure in FIGURES},
        "cpu_per_day_s": spent * DAY / seconds,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def key(run: dict[str, Any]) -> tuple[int, str, str, int]:
    return run["agents"], run["trace"], run["policy"], run["seconds"]


def row(run: dict[str, Any], runs: list[dict[str, Any]]) -> list[Any]:
    hpa = {key(one): one["pod_hours"] for one in runs}.get((run["agents"], run["trace"], "hpa", run["seconds"]))
    return [
        run["trace"], run["policy"], run["pod_hours"], f"{run['pod_hours'] / hpa:.2f} ×" if hpa else "",
        run["most_pods"], f"{run['greatest_closes_per_second']:,}", f"{run['moves_per_agent_day']:.2f}",
        f"{run['hot_seconds']:,}", f"{run['greatest_share']:.0%}", f"{run['refused']:,}", run["wait_p99_seconds"],
        run["cpu_per_day_s"], run["cpu_per_decision_ms"], f"{run['memory_mb']:.0f}",
    ]  # fmt: skip


def report(runs: list[dict[str, Any]]) -> None:
    for agents in sorted({run["agents"] for run in runs}):
        shown = [row(run, runs) for run in runs if run["agents"] == agents]
        table(f"{agents:,} agents, {spec(agents).capacity:,} links for each pod", HEAD, shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", choices=list(TRACES), help="all unless given; may be repeated")
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="all unless given; may be repeated")
    parser.add_argument("--agents", type=lambda text: int(float(text)), nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--minutes", type=int, default=DAY // 60, help="of the modelled day (all of it)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (1)")
    parser.add_argument("--resume", action="store_true", help="keeps the runs that --out has")
    parser.add_argument("--out", type=Path, default=Path("bench-simulator.json"), help="where the figures go")
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.resume and options.out.exists() else []
    runs = {key(run): run for run in kept}
    asked = [
        (agents, trace, policy, options.minutes * 60)
        for agents in options.agents
        for trace in options.trace or TRACES
        for policy in options.policy or POLICIES
    ]
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, processes, max_tasks_per_child=1) as pool:
        missing = [one for one in asked if one not in runs]
        for done in as_completed(pool.submit(measure, trace, size, policy, s) for size, trace, policy, s in missing):
            runs[key(done.result())] = done.result()
            options.out.write_text(json.dumps(list(runs.values()), indent=1))
    report([runs[one] for one in asked])


if __name__ == "__main__":
    main()
