"""`make bench`: Fairlead beside its peers, in one run on one machine. Prints tables and writes a JSON file.

CPU time per operation and bytes per connection are what to compare: wall times on a shared machine are noise. The
peers only echo on plain connections; Fairlead's node also greets, claims in Valkey and keeps facts. Bounded in
count and time; traffic stays on the loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from api import ApiConnection  # noqa: E402  # the folder is a script's, not a package
from fleet import Fleet, each  # noqa: E402
from peers import WHAT, Peers, say  # noqa: E402
from probe import Process, cpu_us, pin, pss  # noqa: E402
from rounds import Round, stamped  # noqa: E402

from fairlead.carrier.client import ClientConnection, connect  # noqa: E402
from fairlead.carrier.listener import Connection  # noqa: E402
from fairlead.carrier.sweep import Sweep  # noqa: E402
from fairlead.fleet.schema import INDEX_SHARDS, index_key  # noqa: E402
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN  # noqa: E402
from fairlead.store.embedded import EmbeddedValkey  # noqa: E402
from fairlead.store.pipeliner import Pipeliner  # noqa: E402
from fairlead.store.reply import integer, octets  # noqa: E402

SUBPROTOCOL = "fairlead.v1.msgpack"


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    agents: int = 10_000
    """Idle at once, registered or plain, when bytes and accepts are measured."""
    crowd: int = 15_000
    """Where the full collection is measured."""
    alone: int = 3_000
    together: int = 10_000
    """Commands with one and with 64 in flight."""
    cycles: int = 10
    cycle: int = 4_000
    messages: int = 20_000
    rounds: int = 3
    """How often each server has its turn; the figures are medians."""
    clients: tuple[tuple[int, int], ...] = ((100, 10), (1_000, 3), (10_000, 1))
    """Of a connect-and-timestamp round, and how many such rounds make a turn."""
    fetch: bool = True
    """Whether peers that are not here may be fetched and built: a test fetches nothing."""


LIMIT = 2400.0
"""Seconds for all of it. A full run takes a third of that on two quiet cores."""

SCALES = {
    "full": Scale(),
    "quick": Scale(2_000, 3_000, 500, 2_000, 3, 1_000, 5_000, 1, ((100, 2), (1_000, 1))),
    "smoke": Scale(50, 60, 20, 100, 2, 20, 100, 1, ((10, 1), (30, 1)), fetch=False),
}


class Plain:
    """A client connection that is only held."""

    def on_open(self, connection: Connection) -> None: ...
    def on_message(self, connection: Connection, data: bytes | str) -> None: ...
    def on_close(self, connection: Connection, code: int, reason: str) -> None: ...
    def on_silence(self, connection: Connection) -> None: ...
    def on_writable(self, connection: Connection) -> None: ...
    def on_overflow(self, connection: Connection) -> None: ...


class Pinger(Plain):
    """Sends a message, waits for its echo, sends again, until `left` are done in all."""

    def __init__(self, payload: bytes, count: int) -> None:
        self.payload = payload
        self.left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_message(self, connection: Connection, data: bytes | str) -> None:
        self.left -= 1
        if self.left > 0:
            connection.send(self.payload)
        elif not self.done.done():
            self.done.set_result(None)


async def hold(process: Process, sweep: Sweep, count: int, listener: Plain) -> list[ClientConnection]:
    """`count` connections that `listener` hears."""
    held: list[ClientConnection] = []

    async def one(_: int, source: str) -> None:
        held.append(
            await connect(
                f"ws://127.0.0.1:{process.port}/v1/link", listener, sweep=sweep, subprotocols=(SUBPROTOCOL,),
                local_address=source,
            )
        )  # fmt: skip

    await each(range(count), one, 64)
    return held


async def closed(held: list[ClientConnection]) -> None:
    for connection in held:
        connection.close()
    async with asyncio.timeout(60):
        while not all(c.transport.is_closing() for c in held):  # nothing tells when the last one ends
            await asyncio.sleep(0.05)


async def idle(peers: Peers, name: str, scale: Scale) -> dict[str, float]:
    """Bytes and CPU of plain idle connections, then the pause of a full collection among some more of them."""
    process = peers.start(name)
    try:
        async with Sweep(silence=3600) as sweep:
            await closed(await hold(process, sweep, 200, Plain()))  # warm: code paths, allocator
            process.collect()
            memory, cpu = pss(process.pid), cpu_us(process.pid)
            held = await hold(process, sweep, scale.agents, Plain())
            cpu = cpu_us(process.pid) - cpu
            process.collect()
            memory = pss(process.pid) - memory
            held += await hold(process, sweep, scale.crowd - scale.agents, Plain())
            pause = process.collect()
            if any(connection.closing for connection in held):
                raise SystemExit(f"{name} has lost some of {len(held)} connections")
            await closed(held)
        return {"bytes": memory / scale.agents, "accept_us": cpu / scale.agents, "gc_ms": pause}
    finally:
        process.stop()


async def idle_in_turn(peers: Peers, scale: Scale) -> dict[str, dict[str, float]]:
    """`idle` of every peer, the rounds in turn; medians."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in peers.names}
    for turn in range(scale.rounds):
        for name in peers.names:
            say(f"2/4 {scale.agents} idle connections, {turn + 1} of {scale.rounds}: {name}")
            taken[name].append(await idle(peers, name, scale))
    return {
        name: {figure: statistics.median(one[figure] for one in turns) for figure in turns[0]}
        for name, turns in taken.items()
    }


async def echo(processes: dict[str, Process], connections: int, messages: int, rounds: int) -> dict[str, float]:
    """CPU µs per 128 B echo at each server, the rounds in turn; medians."""
    taken: dict[str, list[float]] = {name: [] for name in processes}
    async with Sweep(silence=3600) as sweep:
        for _ in range(rounds):
            for name, process in processes.items():
                pinger = Pinger(os.urandom(128), messages)
                held = await hold(process, sweep, connections, pinger)
                cpu = cpu_us(process.pid)
                for connection in held:
                    connection.send(pinger.payload)
                async with asyncio.timeout(120):
                    await pinger.done
                taken[name].append((cpu_us(process.pid) - cpu) / messages)
                await closed(held)
    return {name: statistics.median(each_taken) for name, each_taken in taken.items()}


async def stamps(processes: dict[str, Process], scale: Scale) -> dict[int, dict[str, Round]]:
    """Connect-and-timestamp rounds at each server, in turn; medians of each figure."""
    found: dict[int, dict[str, Round]] = {}
    async with Sweep(silence=3600) as sweep:
        for clients, times in scale.clients:
            taken: dict[str, list[Round]] = {name: [] for name in processes}
            for turn in range(scale.rounds):
                say(f"3/4 rounds of {clients} clients, {turn + 1} of {scale.rounds}")
                for name, process in processes.items():
                    taken[name] += [await stamped(process, sweep, clients) for _ in range(times)]
            found[clients] = {name: Round.median(rounds) for name, rounds in taken.items()}
    return found


async def registered(peers: Peers, folder: Path, scale: Scale) -> dict[str, Any]:
    """The real node with registered agents: memory, accepts, commands, collection, cycles."""
    result: dict[str, Any] = {}
    count = scale.agents
    async with EmbeddedValkey(folder / "valkey") as valkey:
        process, api_port = peers.gateway(valkey.url, folder)
        pin(valkey.pid, 1)  # beside the load: in the field it has a machine of its own
        store = Pipeliner(valkey.url)
        store.start()
        try:
            assert await store.wait_available(10)
            async with Sweep(silence=3600) as sweep:
                fleet = Fleet(f"ws://127.0.0.1:{process.port}/v1/link", DEVELOPMENT_AGENT_TOKEN, sweep)
                await fleet.join(min(200, count))  # warm
                await fleet.leave()
                process.collect()
                memory, vmemory = pss(process.pid), pss(valkey.pid)
                cpu, vcpu = cpu_us(process.pid), cpu_us(valkey.pid)
                await fleet.join(count)
                result["accept_us"] = (cpu_us(process.pid) - cpu) / count
                result["accept_valkey_us"] = (cpu_us(valkey.pid) - vcpu) / count
                process.collect()
                result["bytes"] = (pss(process.pid) - memory) / count
                result["valkey_bytes"] = (pss(valkey.pid) - vmemory) / count
                known = sum([integer(await store.submit("ZCARD", index_key(s))) for s in range(INDEX_SHARDS)])
                if known != count:
                    raise SystemExit(f"Valkey knows {known} agents, {count} are linked")
                say(f"   {count} agents registered, {known} known to Valkey")
                result["commands"] = [
                    await commands(process, valkey.pid, api_port, count, 1, scale.alone),
                    await commands(process, valkey.pid, api_port, count, 64, scale.together),
                ]
                if fleet.answered != scale.alone + scale.together:
                    raise SystemExit(f"{scale.alone + scale.together} commands posted, {fleet.answered} have arrived")
                await fleet.join(scale.crowd - count)
                result["gc_ms"] = process.collect()
                if fleet.linked != scale.crowd:
                    raise SystemExit(f"{fleet.linked} of {scale.crowd} agents are still linked")
                await fleet.leave()
                process.collect()
                result["cycles"] = [await cycle(process, fleet, scale.cycle) for _ in range(scale.cycles)]
                result["known"], result["claims"] = known, await claims(store)
                joined = min(200, count) + scale.crowd + scale.cycles * scale.cycle
                if result["claims"] < joined:
                    raise SystemExit(f"Valkey has run {result['claims']} claims for {joined} links")
        finally:
            await store.aclose()
            process.stop()
    return result


async def cycle(process: Process, fleet: Fleet, count: int) -> dict[str, float]:
    """Let `count` agents come and go: CPU of the coming, and what is left in memory afterwards."""
    cpu = cpu_us(process.pid)
    await fleet.join(count)
    accept = (cpu_us(process.pid) - cpu) / count
    await fleet.leave()
    process.collect()
    return {"accept_us": accept, "pss": pss(process.pid)}


async def claims(store: Pipeliner) -> int:
    """How often Valkey has run the claim: of our scripts the only one that reads the names of a hash's fields."""
    report = octets(await store.submit("INFO", "commandstats")).decode()
    return int(report.partition("cmdstat_hkeys:calls=")[2].partition(",")[0])


async def commands(
    process: Process, valkey: int, port: int, agents: int, in_flight: int, count: int
) -> dict[str, float]:
    """Round trips through the API to random agents."""
    took: list[float] = []
    left = iter(range(count))

    async def caller() -> None:
        connection = await ApiConnection.open(port, DEVELOPMENT_PLATFORM_TOKEN)
        for _ in left:
            took.append(await connection.command(f"bench-{random.randrange(agents)}"))  # noqa: PERF401  # awaits
        connection.close()

    cpu, vcpu = cpu_us(process.pid), cpu_us(valkey)
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    took.sort()
    return {
        "in_flight": in_flight, "count": count, "p50_ms": took[count // 2] * 1000,
        "p99_ms": took[count * 99 // 100] * 1000,
        "node_us": (cpu_us(process.pid) - cpu) / count, "valkey_us": (cpu_us(valkey) - vcpu) / count,
    }  # fmt: skip


async def bounded(scale: Scale, out: Path) -> None:
    try:
        async with asyncio.timeout(LIMIT):
            await run(scale, out)
    except TimeoutError as e:
        raise SystemExit(f"the benchmark did not end within {LIMIT:g} s") from e


def ratio(figure: float, ours: float) -> float:
    """NaN where ours is too short for the scheduler's count: at the tiny scale of a test."""
    return figure / ours if ours > 0 else float("nan")


def table(title: str, head: list[str], rows: list[list[Any]]) -> None:
    print(f"\n{title}\n")
    cells = [[f"{c:,.1f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in cells:
        print("| " + " | ".join(row) + " |")


async def run(scale: Scale, out: Path) -> None:
    started = time.monotonic()
    pin(0, 1)
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as temporary:
        folder = Path(temporary)
        peers = Peers(folder, scale.fetch)
        say("1/4 the real node with registered agents")
        node = await registered(peers, folder, scale)
        plain = await idle_in_turn(peers, scale)
        echoes: dict[int, dict[str, float]] = {}
        processes = {name: peers.start(name) for name in peers.names}
        try:
            stamped_rounds = await stamps(processes, scale)
            for connections in (1, 100, 1000):
                say(f"4/4 echo over {connections} connections")
                messages = scale.messages // (5 if connections == 1 else 1)
                echoes[connections] = await echo(processes, connections, messages, scale.rounds)
        finally:
            for process in processes.values():
                process.stop()
    report(node, plain, echoes, scale)
    report_rounds(stamped_rounds)
    figures = {
        "node": node, "plain": plain, "echo": echoes, "cpus": os.cpu_count(),
        "rounds": {n: {name: asdict(one) for name, one in peers.items()} for n, peers in stamped_rounds.items()},
    }  # fmt: skip
    await asyncio.to_thread(out.write_text, json.dumps(figures, indent=1))
    say(f"\n{time.monotonic() - started:.0f} s; figures in {out}")


def report(
    node: dict[str, Any],
    plain: dict[str, dict[str, float]],
    echoes: dict[int, dict[str, float]],
    scale: Scale,
) -> None:
    mebibytes = [f"{one['pss'] / 2**20:.1f}" for one in node["cycles"]]
    again = statistics.median(one["accept_us"] for one in node["cycles"])
    table(
        f"The real node, {scale.agents:,} registered agents; Valkey's own share apart",
        ["", "node", "Valkey"],
        [
            ["bytes (PSS) per idle agent", node["bytes"], node["valkey_bytes"]],
            ["CPU µs per accept", node["accept_us"], node["accept_valkey_us"]],
            [f"CPU µs per accept of known agents, median of {scale.cycles} × {scale.cycle:,}", again, ""],
            [f"full collection among {scale.crowd:,} agents, ms", node["gc_ms"], ""],
            [f"PSS after {scale.cycles} comings and goings, first … last, MiB",
             f"{mebibytes[0]} … {mebibytes[-1]}", ""],
        ],
    )  # fmt: skip
    table(
        "Commands: POST, the stream read to its end",
        ["in flight", "p50 ms", "p99 ms", "node CPU µs", "Valkey CPU µs"],
        [
            [c["in_flight"], f"{c['p50_ms']:.2f}", f"{c['p99_ms']:.2f}", c["node_us"], c["valkey_us"]]
            for c in node["commands"]
        ],
    )
    mine = {"the node, registered": node} | {WHAT[name]: figures for name, figures in plain.items()}
    table(
        f"Idle connections ({scale.agents:,}; the collection among {scale.crowd:,}); × is the ratio to the node",
        ["server", "bytes", "×", "accept µs", "×", "full collection ms", "×"],
        [
            [name, *(v for f in ("bytes", "accept_us", "gc_ms") for v in (p[f], ratio(p[f], node[f])))]
            for name, p in mine.items()
        ],
    )
    table(
        "Echo of 128 B, server CPU µs per message; × is the ratio to Fairlead's carrier",
        ["server", *(h for c in echoes for h in (f"{c} conn", "×"))],
        [
            [WHAT[n], *(v for c in echoes for v in (echoes[c][n], ratio(echoes[c][n], echoes[c]["fairlead"])))]
            for n in plain
        ],
    )


def report_rounds(found: dict[int, dict[str, Round]]) -> None:
    for clients, peers in found.items():
        ours = peers["fairlead"]
        table(
            f"Rounds of {clients:,} clients: connect, send {{c}}, get {{c, ts}}; × is the ratio to Fairlead's carrier",
            ["server", "CPU µs per client", "×", "round s", "connect p50 ms", "connect p99 ms", "answer p50 ms",
             "answer p99 ms"],
            [
                [WHAT[name], one.cpu_us, ratio(one.cpu_us, ours.cpu_us), f"{one.seconds:.3f}",
                 *(f"{figure:.2f}" for figure in (one.connect_p50, one.connect_p99, one.answer_p50, one.answer_p99))]
                for name, one in peers.items()
            ],
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=list(SCALES), default="full", help="full: minutes; quick: seconds")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="where the figures go")
    options = parser.parse_args()
    uvloop.run(bounded(SCALES[options.scale], options.out))


if __name__ == "__main__":
    main()
