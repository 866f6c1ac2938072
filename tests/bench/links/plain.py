"""Plain connections to a node's carrier and to its peers: bytes and CPU of idle ones, echoes, rounds of clients.

Called by run.py. The servers take turns, so that what the machine does meanwhile falls on all of them;
figures are medians.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from pathlib import Path

from fairlead.carrier.client import ClientConnection, connect
from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel

from bench.links.rounds import stamped
from bench.links.scale import Scale
from bench.output import medians, print_progress
from bench.peers.catalogue import Peers
from bench.probe import BenchProcess, cpu_us, pss
from support.simulated_fleet import each

SUBPROTOCOL = "fairlead.v1.msgpack"


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
        if data != self.payload:
            if not self.done.done():
                self.done.set_exception(ValueError(f"the server echoed {data!r}: expected {self.payload!r}"))
            return
        self.left -= 1
        if self.left > 0:
            connection.send(self.payload)
        elif not self.done.done():
            self.done.set_result(None)


async def hold(process: BenchProcess, timer_wheel: TimerWheel, count: int, listener: Plain) -> list[ClientConnection]:
    """`count` connections whose messages go to `listener`."""
    held: list[ClientConnection] = []

    async def one(_: int, source: str) -> None:
        held.append(
            await connect(
                f"ws://127.0.0.1:{process.port}/v1/link", listener, timer_wheel=timer_wheel,
                subprotocols=(SUBPROTOCOL,), local_address=source,
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
        async with TimerWheel(silence=3600) as timer_wheel:
            await closed(await hold(process, timer_wheel, 200, Plain()))  # warm: code paths, allocator
            process.collect()
            memory, cpu = pss(process.pid), cpu_us(process.pid)
            held = await hold(process, timer_wheel, scale.agents, Plain())
            cpu = cpu_us(process.pid) - cpu
            process.collect()
            memory = pss(process.pid) - memory
            held += await hold(process, timer_wheel, scale.crowd - scale.agents, Plain())
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
            print_progress(f"2/4 {scale.agents} idle connections, {turn + 1} of {scale.rounds}: {name}")
            taken[name].append(await idle(peers, name, scale))
    return {name: medians(turns) for name, turns in taken.items()}


async def echo(
    processes: dict[str, BenchProcess], connections: int, messages: int, rounds: int
) -> dict[str, dict[str, float]]:
    """CPU µs per 128 B echo at each server, and the load generator's share of its core; the rounds in turn, medians."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in processes}
    async with TimerWheel(silence=3600) as timer_wheel:
        for _ in range(rounds):
            for name, process in processes.items():
                pinger = Pinger(os.urandom(128), messages)
                held = await hold(process, timer_wheel, connections, pinger)
                cpu, started, own = cpu_us(process.pid), time.perf_counter(), time.process_time()
                for connection in held:
                    connection.send(pinger.payload)
                async with asyncio.timeout(120):
                    await pinger.done
                load = (time.process_time() - own) / (time.perf_counter() - started)
                taken[name].append({"us": (cpu_us(process.pid) - cpu) / messages, "load": load})
                await closed(held)
    return {name: medians(turns) for name, turns in taken.items()}


async def stamps(
    processes: dict[str, BenchProcess], program: Path, scale: Scale
) -> dict[int, dict[str, dict[str, float]]]:
    """Connect-and-timestamp rounds at each server, in turn; medians of each figure."""
    found: dict[int, dict[str, dict[str, float]]] = {}
    for clients, times in scale.clients:
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in processes}
        for turn in range(scale.rounds):
            print_progress(f"3/4 rounds of {clients} clients, {turn + 1} of {scale.rounds}")
            for name, process in processes.items():
                taken[name] += [asdict(await stamped(process, program, clients)) for _ in range(times)]
        found[clients] = {name: medians(turns) for name, turns in taken.items()}
    return found
