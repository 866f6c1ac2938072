"""The real node with registered agents: memory, accepts, commands, collection, and agents that come and go.

Called by run.py. What it reports is checked against what Valkey has counted: agents, claims and commands that arrived.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.fleet.schema import index_key
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN
from fairlead.shards import SHARDS
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, octets

from bench.api import round_trips
from bench.links.scale import Scale
from bench.output import print_progress
from bench.peers.catalogue import Peers
from bench.probe import BenchProcess, cpu_us, pin, pss
from support.simulated_fleet import SimulatedFleet


async def registered(peers: Peers, folder: Path, scale: Scale) -> dict[str, Any]:
    """The real node with registered agents: memory, accepts, commands, collection, cycles."""
    result: dict[str, Any] = {}
    count = scale.agents
    async with EmbeddedValkey(folder / "valkey") as valkey:
        process, api_port, _ = peers.gateway(valkey.url, folder)
        pin(valkey.pid, 1)  # beside the load: in the field it has a machine of its own
        store = Pipeliner(valkey.url)
        store.start()
        try:
            assert await store.wait_available(10)
            async with TimerWheel(silence=3600) as timer_wheel:
                fleet = SimulatedFleet(f"ws://127.0.0.1:{process.port}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
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
                known = sum([integer(await store.submit("ZCARD", index_key(s))) for s in range(SHARDS)])
                if known != count:
                    raise SystemExit(f"Valkey knows {known} agents, {count} are linked")
                print_progress(f"   {count} agents registered, {known} known to Valkey")
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
                result["cycles"] = [await cycle(process, valkey.pid, fleet, scale.cycle) for _ in range(scale.cycles)]
                result["known"], result["claims"] = known, await claims(store)
                joined = min(200, count) + scale.crowd + scale.cycles * scale.cycle
                if result["claims"] < joined:
                    raise SystemExit(f"Valkey has run {result['claims']} claims for {joined} links")
        finally:
            await store.aclose()
            process.stop()
    return result


async def cycle(process: BenchProcess, valkey: int, fleet: SimulatedFleet, count: int) -> dict[str, float]:
    """Let `count` agents that are known come and go: CPU of the coming, and what is left in memory afterwards."""
    cpu, vcpu = cpu_us(process.pid), cpu_us(valkey)
    await fleet.join(count)
    accept, valkey_accept = (cpu_us(process.pid) - cpu) / count, (cpu_us(valkey) - vcpu) / count
    await fleet.leave()
    process.collect()
    return {"accept_us": accept, "accept_valkey_us": valkey_accept, "pss": pss(process.pid)}


async def claims(store: Pipeliner) -> int:
    """How often Valkey has run the claim: of our scripts the only one that reads the names of a hash's fields."""
    report = octets(await store.submit("INFO", "commandstats")).decode()
    return int(report.partition("cmdstat_hkeys:calls=")[2].partition(",")[0])


async def commands(
    process: BenchProcess, valkey: int, port: int, agents: int, in_flight: int, count: int
) -> dict[str, float]:
    """Round trips through the API to random agents."""
    cpu, vcpu = cpu_us(process.pid), cpu_us(valkey)
    took = await round_trips(port, DEVELOPMENT_PLATFORM_TOKEN, agents, in_flight, count)
    return {
        "in_flight": in_flight, "count": count, "p50_ms": took[count // 2] * 1000,
        "p99_ms": took[count * 99 // 100] * 1000,
        "node_us": (cpu_us(process.pid) - cpu) / count, "valkey_us": (cpu_us(valkey) - vcpu) / count,
    }  # fmt: skip
