"""What signing and auditing cost a command, in CPU time of node, agent, Redis and caller.

`python -m bench.commands.signatures` prints a table and may write a JSON file. There are two nodes, one with an audit
log whose heads are signed, and agents of the SDK in processes of their own: plain ones, ones with a journal, which
trusted keys need, and ones that trust a key. All take turns, round by round, so that a busy machine disturbs all alike;
figures are medians of rounds. Commands are signed before a round begins, and what that takes is told apart. Bounded in
count and time.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2
import uvloop

from fairlead.agent import Agent
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN
from fairlead.signing.keys import generate, parse_public_keys
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.api import posts
from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import cpu_us, pss
from support.plain_http import plain_client
from support.signing import signed
from support.waiting import until

METHOD = "bench"
PAYLOAD = b'{"argv":["systemctl","restart","web"],"timeout":30}'
KEYS = "trusted.pub"
TIMEOUT = 30.0


@dataclass(frozen=True)
class Variant:
    """`node` and `agents` are a kind of each."""

    name: str
    node: str
    agents: str


VARIANTS = (
    Variant("plain", "plain", "plain"),
    Variant("audited", "audited", "plain"),
    Variant("plain, agent with a journal", "plain", "journal"),
    Variant("signed", "plain", "pinned"),
    Variant("signed and audited", "audited", "pinned"),
)


@dataclass(frozen=True)
class SignaturesScale:
    """How much of everything. `count` are the commands of one variant in one round."""

    agents: int = 10
    in_flight: int = 16
    count: int = 500
    rounds: int = 15


SCALES = {"full": SignaturesScale(), "smoke": SignaturesScale(2, 4, 20, 1)}


class AgentsProcess:
    """The agents of one variant, in a process of their own."""

    def __init__(self, variant: Variant, prefix: str, gateway: BenchGateway, folder: Path, count: int) -> None:
        self.names = [f"{prefix}-{n}" for n in range(count)]
        self._process = subprocess.Popen(
            [
                sys.executable, "-I", "-m", "bench.commands.signatures", "--kind", variant.agents, "--folder",
                str(folder), "--url", f"ws://127.0.0.1:{gateway.link}", "--agents", *self.names,
            ],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT)


async def serve(kind: str, folder: Path, url: str, names: list[str]) -> None:
    keys = parse_public_keys((folder / KEYS).read_text(), KEYS)
    agents = []
    for name in names:
        journal = folder / f"{name}-journal" if kind != "plain" else None
        trusted = TrustedKeys(keys) if kind == "pinned" else None
        agent = Agent(url, name, DEVELOPMENT_AGENT_TOKEN, journal=journal, trusted_keys=trusted)

        @agent.command(METHOD)
        async def work(argv: list[str], timeout: int) -> dict[str, int]:
            return {"exit_code": 0}

        agents.append(agent)
    await asyncio.gather(*(agent.serve() for agent in agents))


class SignaturesBench:
    def __init__(self, scale: SignaturesScale, folder: Path, valkey: EmbeddedValkey, ending: ExitStack) -> None:
        self._scale, self._key, self._valkey = scale, generate(), valkey
        (folder / KEYS).write_text(self._key.public.line() + "\n")
        audit_key = folder / "audit.pem"
        audit_key.write_bytes(self._key.pem())
        audit_key.chmod(0o600)
        audited = ("--audit-log", str(folder / "audit"), "--audit-key", str(audit_key))
        self._gateways = {
            "plain": BenchGateway("plain", valkey.url, folder),
            "audited": BenchGateway("audited", valkey.url, folder, *audited),
        }
        ending.enter_context(running(*self._gateways.values()))
        self._agents: dict[Variant, AgentsProcess] = {}
        for n, variant in enumerate(VARIANTS):
            process = AgentsProcess(variant, f"v{n}", self._gateways[variant.node], folder, scale.agents)
            ending.callback(process.stop)
            self._agents[variant] = process

    def bodies(self, variant: Variant) -> tuple[list[bytes], float]:
        """The requests of one round, and the seconds of CPU time that signing takes."""
        names = self._agents[variant].names
        chosen = [random.choice(names) for _ in range(self._scale.count)]
        if variant.agents != "pinned":
            return [_body(name) for name in chosen], 0.0
        began = time.thread_time()
        commands = [signed(self._key, METHOD, PAYLOAD, agent=name, valid=300_000) for name in chosen]
        took = time.thread_time() - began
        return [_body(name, cmd.id, cmd.sig) for name, cmd in zip(chosen, commands, strict=True)], took

    async def ready(self) -> None:
        """Wait until every agent is linked, and warm all of them up."""
        for variant in VARIANTS:
            api = self._gateways[variant.node].api
            headers = {"authorization": f"Bearer {DEVELOPMENT_PLATFORM_TOKEN}"}
            async with plain_client(base_url=f"http://127.0.0.1:{api}", headers=headers) as http:
                for name in self._agents[variant].names:
                    await until(partial(_linked, http, name))
            await self.measure(variant)

    async def measure(self, variant: Variant) -> dict[str, float]:
        """CPU µs per command of everybody, in one round."""
        gateway, agents, count = self._gateways[variant.node], self._agents[variant], self._scale.count
        bodies, signing = self.bodies(variant)
        pids = {"node": gateway.pid, "agent": agents.pid, "redis": self._valkey.pid}
        before = {name: cpu_us(pid) for name, pid in pids.items()}
        took = await posts(gateway.api, DEVELOPMENT_PLATFORM_TOKEN, self._scale.in_flight, bodies)
        used = {f"{name}_us": (cpu_us(pid) - before[name]) / count for name, pid in pids.items()}
        times = {"p50_ms": took[count // 2] * 1000, "p99_ms": took[count * 99 // 100] * 1000}
        return {**used, **times, "signing_us": signing * 1e6 / count, "agent_mb": pss(agents.pid) / 1e6}


async def _linked(http: httpx2.AsyncClient, agent: str) -> bool:
    answer = await http.get(f"/v1/agents/{agent}")
    return bool(answer.status_code == 200 and answer.json()["state"] == "online")


def _body(agent: str, id: str = "", signature: bytes = b"") -> bytes:
    order = {"agent": agent, "method": METHOD}
    if signature:
        order |= {"id": id, "signature": base64.b64encode(signature).decode()}
    return json.dumps(order).encode()[:-1] + b', "payload": ' + PAYLOAD + b"}"


async def run(scale: SignaturesScale, out: Path | None) -> None:
    rounds: dict[str, list[dict[str, float]]] = {variant.name: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        async with EmbeddedValkey(Path(name) / "valkey") as valkey:
            with ExitStack() as ending:
                bench = SignaturesBench(scale, Path(name), valkey, ending)
                await bench.ready()
                for turn in range(scale.rounds):
                    print_progress(f"round {turn + 1} of {scale.rounds}")
                    for variant in random.sample(VARIANTS, len(VARIANTS)):
                        rounds[variant.name].append(await bench.measure(variant))
    figures = {name: {key: _median(runs, key) for key in runs[0]} for name, runs in rounds.items()}
    columns = ("node_us", "agent_us", "redis_us", "signing_us", "p50_ms", "p99_ms", "agent_mb")
    head = ["command", "node µs", "agent µs", "Redis µs", "caller's signing µs", "p50 ms", "p99 ms", "MB of the agents"]
    table(
        head, [[name, *(f"{one[key]:.{1 if 'ms' in key else 0}f}" for key in columns)] for name, one in figures.items()]
    )
    if out is not None:
        out.write_text(json.dumps({"scale": vars(scale), "figures": figures}, indent=2))


def _median(runs: list[dict[str, float]], key: str) -> float:
    ordered = sorted(run[key] for run in runs)
    return ordered[len(ordered) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description="What signing and auditing cost a command.")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--agents", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind is not None:
        asyncio.run(serve(given.kind, given.folder, given.url, given.agents))
    else:
        uvloop.run(run(SCALES[given.scale], given.out))


if __name__ == "__main__":
    main()
