"""For how long an agent cannot be reached while it moves: commands on it at a steady rate, with moves and without.

`python -m bench.moving.moves --moves 5`: two real nodes and a Valkey of their own on this machine, one agent of the
SDK behind a load balancer. The node that holds the agent gets SIGTERM and is started again before the next move. Each
command counts from the time at which it was due. The agent and the caller live in this process, in all phases alike.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx2
import uvloop

from fairlead.agent import Agent, Command
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.output import print_progress, table
from faults.balancer import Balancer
from support.gateway.process import GatewayProcess
from support.gateway.steady_commands import Outcome, SteadyCommands

AROUND = 1.0
"""Seconds before a move, and after it, whose commands count as those of the move."""
LIMIT = 600.0


@dataclass
class Figures:
    """Of the commands of one phase: latencies, and the longest time between two answers, in ms."""

    commands: int
    not_ok: int
    p50: float
    p99: float
    max: float
    gap: float


def figures(outcomes: Sequence[Outcome]) -> Figures:
    took = sorted(outcome.took * 1000 for outcome in outcomes)
    ends = sorted(outcome.ended for outcome in outcomes)
    gap = max((later - earlier for earlier, later in itertools.pairwise(ends)), default=0.0)
    not_ok = sum(outcome.state != "ok" for outcome in outcomes)
    p50, p99 = (took[int(share * (len(took) - 1))] for share in (0.5, 0.99))
    return Figures(len(took), not_ok, p50, p99, took[-1], gap * 1000)


class MoveScene:
    """Two nodes, the load balancer in front of them, and the agent."""

    def __init__(self, folder: Path, redis: str) -> None:
        self.nodes = [GatewayProcess(folder, redis, ("--drain-timeout", "12"), name=f"node-{n}") for n in (1, 2)]
        self.ran: Counter[str] = Counter()
        headers = {"authorization": f"Bearer {DEVELOPMENT_PLATFORM_TOKEN}"}
        self._http = httpx2.AsyncClient(headers=headers, trust_env=False)
        self._balancer = Balancer(self._ports, random.Random(1))
        self._serving: asyncio.Task[None] | None = None
        self._agent: Agent | None = None

    def _ports(self) -> list[int]:
        return [int(node.link.rpartition(":")[2]) for node in self.nodes if node.running]

    async def start(self) -> None:
        for node in self.nodes:
            await asyncio.to_thread(node.start)
        await self._balancer.start()
        self._agent = agent = Agent(f"ws://127.0.0.1:{self._balancer.port}", "mover", DEVELOPMENT_AGENT_TOKEN)

        @agent.command("echo")
        async def echo(command: Command) -> None:
            self.ran[command.id] += 1

        self._serving = asyncio.create_task(agent.serve())
        async with asyncio.timeout(30):
            while await self.holder() is None:
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self._agent is not None and self._serving is not None:
            self._agent.stop()
            await self._serving
        await self._http.aclose()
        await self._balancer.stop()
        for node in self.nodes:
            await asyncio.to_thread(node.stop)

    async def holder(self, asked: GatewayProcess | None = None) -> GatewayProcess | None:
        """The node that has the agent's link, as one that is `asked` says, and stays."""
        answer = await self._http.get(f"{(asked or self.nodes[0]).api}/v1/agents/mover")
        row = answer.json()
        if answer.status_code != 200 or row["state"] != "online":
            return None
        return next(node for node in self.nodes if node.name == row["node"])


async def move(scene: MoveScene, rate: float) -> list[Outcome]:
    """The outcomes of the commands around one move."""
    leaving = await scene.holder()
    if leaving is None:
        raise SystemExit("the agent has no link between two moves")
    staying = next(node for node in scene.nodes if node is not leaving)
    async with SteadyCommands(staying.api, DEVELOPMENT_PLATFORM_TOKEN, ["mover"], "echo", rate) as commands:
        await asyncio.sleep(2 * AROUND)
        began = time.monotonic()
        leaving.signal(signal.SIGTERM)
        while await scene.holder(staying) is not staying:
            await asyncio.sleep(0.1)
        moved = time.monotonic()
        await asyncio.sleep(AROUND)
    await asyncio.to_thread(leaving.wait)
    await asyncio.to_thread(leaving.start)
    around = [o for o in commands.outcomes if began - AROUND <= o.posted <= moved + AROUND]
    if not around:
        raise SystemExit(f"{rate:g} commands a second are too many for this machine now: try a lower --rate")
    return around


async def run(moves: int, rate: float, quiet: float, out: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        async with EmbeddedValkey(Path(name) / "valkey") as valkey, asyncio.timeout(LIMIT):
            scene = MoveScene(Path(name), valkey.url)
            try:
                await scene.start()
                print_progress(f"{quiet:g} s without a move, {rate:g} commands a second")
                async with SteadyCommands(
                    scene.nodes[0].api, DEVELOPMENT_PLATFORM_TOKEN, ["mover"], "echo", rate
                ) as still:
                    await asyncio.sleep(quiet)
                phases = {"no move": figures(still.outcomes)}
                for number in range(1, moves + 1):
                    print_progress(f"move {number} of {moves}")
                    phases[f"move {number}"] = figures(await move(scene, rate))
                twice = sum(count > 1 for count in scene.ran.values())
            finally:
                await scene.stop()
    table(
        ["phase", "commands", "not ok", "p50 ms", "p99 ms", "max ms", "longest gap ms"],
        [
            [phase, str(f.commands), str(f.not_ok), f"{f.p50:.1f}", f"{f.p99:.1f}", f"{f.max:.1f}", f"{f.gap:.1f}"]
            for phase, f in phases.items()
        ],
    )
    print(f"commands that ran twice: {twice}")
    if out is not None:
        report = {"phases": {phase: asdict(f) for phase, f in phases.items()}, "twice": twice}
        out.write_text(json.dumps(report, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description="Commands on an agent that moves between nodes.")
    parser.add_argument("--moves", type=int, default=5)
    parser.add_argument("--rate", type=float, default=100.0, help="commands a second")
    parser.add_argument("--quiet", type=float, default=10.0, help="seconds without a move, to compare with")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    uvloop.run(run(given.moves, given.rate, given.quiet, given.out))


if __name__ == "__main__":
    main()
