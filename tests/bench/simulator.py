"""What the simulator costs: CPU seconds for a modelled day, and CPU time of one decision of the operator.

    python -I -m bench.simulator            1 and 10 million agents, half an hour of each
    python -I -m bench.simulator --minutes 1

Prints a table and writes a JSON file. CPU time is counted, so other load on the machine matters little.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Tokens, TokenSecret
from fairlead_operator.simulator.policies import POLICIES
from fairlead_operator.simulator.scenarios.traces import day
from fairlead_operator.simulator.simulation import DAY, ModelOptions, Simulation

from bench.tables import table

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=20_000,
    replicas=Replicas(max=1000),
    redis=Redis(url="redis://none"),
    tokens=Tokens(secret_ref=TokenSecret(name="none")),
)


def measure(agents: int, policy: str, seconds: int) -> dict[str, float | str]:
    """The hours before noon, in which pods are added, at the slope of a whole day."""
    scenario = day(agents, DAY)
    simulation = Simulation(scenario, SPEC, POLICIES[policy](SPEC, agents), ModelOptions())
    began = time.process_time()
    for _ in range(seconds):
        simulation.step()
    spent = time.process_time() - began
    cost = simulation.cost
    return {
        "agents": agents, "policy": policy, "seconds": seconds, "pods": cost.most_pods,
        "cpu_per_day_s": spent * DAY / seconds, "cpu_per_decision_ms": 1000 * cost.seconds / cost.decisions,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=30, help="of the modelled fleet")
    parser.add_argument("--agents", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--out", type=Path, default=Path("bench-simulator.json"), help="where the figures go")
    options = parser.parse_args()
    runs = [measure(agents, policy, options.minutes * 60) for agents in options.agents for policy in POLICIES]
    table(
        "The simulator: CPU for a modelled day",
        ["agents", "policy", "pods", "CPU s per day", "CPU ms per decision"],
        [[f"{run['agents']:,}", run["policy"], run["pods"], run["cpu_per_day_s"], run["cpu_per_decision_ms"]]
         for run in runs],
    )  # fmt: skip
    options.out.write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
