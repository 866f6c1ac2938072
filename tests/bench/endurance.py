"""A week of agents' time in fast motion: does a node hold in the end what it held in the beginning?

    python -m bench.endurance                        some thousand connections
    python -m bench.endurance --accepts 1000000      as many as the node shall accept

One real node with its Valkey. In each round a crowd of agents connects and registers, sends heartbeats, runs commands,
and leaves: a third says goodbye, a third closes, a third is reset. Beside them come strays, which a port in the open
has too: some send nothing, half a request, a request for something else, or open a link and never say hello. After each
round the node must have as many open descriptors as before the first one, and in the end as much memory, although its
garbage collector is switched off. What a node keeps of the commands of the last 30 s, to say it again after a failover,
is not counted: the node tells how much that is, and how much it is depends on how fast this machine is. The last crowd
is drained. Descriptors are counted in /proc, so no tracer slows the node down. Exits with 1 if something was left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import struct
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Bye, Hb

from bench.api import round_trips
from bench.output import print_progress, table
from bench.peers.catalogue import Peers
from bench.probe import BenchProcess, cpu_us, memory
from support.simulated_fleet import CODEC, SOURCES, SimulatedFleet

WARM = 3
"""Rounds before the first count: code paths, caches and the allocator's arenas."""
STRAYS_AT_ONCE = 200
"""At most: a node keeps a thousand connections without a token, and half of these from one address."""
GROWTH = 8 << 20
"""Bytes that the node may have grown by in the end. The allocator's slack is some megabytes, and whose command each of
the last 5,000 was takes two; one small object for each of a million accepts would be 50."""
PATIENCE = 60.0
"""Seconds within which a round's descriptors are closed."""
KEPT = re.compile(r"^fairlead_recent_steps_bytes (\S+)$", re.MULTILINE)
RESET = struct.pack("ii", 1, 0)
LINK = (
    b"GET /v1/link HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Protocol: fairlead.v1.msgpack\r\nAuthorization: Bearer %b\r\n\r\n"
    % DEVELOPMENT_AGENT_TOKEN.encode()
)
STRAYS = (b"", b"GET /v1/link HT", b"GET /elsewhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", LINK)
"""What a stray sends, each in turn."""
ANSWERED = STRAYS[2:]


@dataclass(frozen=True)
class EnduranceSample:
    """The node after a round."""

    accepts: int
    descriptors: int
    uss: int
    kept: int
    """Bytes of the last commands, as the node tells."""
    threads: int
    cpu_us: float


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def stray(port: int, number: int) -> None:
    """One connection that is no agent's."""
    loop, sent = asyncio.get_running_loop(), STRAYS[number % len(STRAYS)]
    with socket.socket() as peer:
        peer.setblocking(False)
        peer.bind((SOURCES[number % len(SOURCES)], 0))
        async with asyncio.timeout(PATIENCE):
            await loop.sock_connect(peer, ("127.0.0.1", port))
            if sent:
                await loop.sock_sendall(peer, sent)
            if sent in ANSWERED:
                await loop.sock_recv(peer, 4096)
        if number % 3 == 0:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


async def come_and_go(port: int, count: int) -> None:
    """`count` strays."""
    left = iter(range(count))

    async def some() -> None:
        for number in left:
            await stray(port, number)

    await asyncio.gather(*(some() for _ in range(STRAYS_AT_ONCE)))


def kept(admin: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=PATIENCE) as answer:
        found = KEPT.search(answer.read().decode())
    assert found is not None
    return int(float(found[1]))


class Endurance:
    def __init__(
        self, process: BenchProcess, ports: tuple[int, int], fleet: SimulatedFleet, crowd: int, strays: int
    ) -> None:
        """`ports` are those of the API and of the metrics."""
        self._process = process
        self._api, self._admin = ports
        self._fleet = fleet
        self._crowd = crowd
        self._strays = strays
        self.accepts = 0
        self.commands = 0

    async def round(self) -> None:
        """One round: everybody comes, works and goes."""
        fleet, port = self._fleet, self._process.port
        await asyncio.gather(fleet.join(self._crowd), come_and_go(port, self._strays))
        self.accepts += self._crowd + self._strays
        for agent in fleet.agents:
            assert agent.connection is not None
            agent.connection.send(CODEC.encode(Hb(ts=time.monotonic_ns() // 1000, rtt=1.5)))
        took = await round_trips(self._api, DEVELOPMENT_PLATFORM_TOKEN, self._crowd, 16, self._crowd // 4)
        self.commands += len(took)
        for number, agent in enumerate(fleet.agents):
            connection = agent.connection
            if connection is None:
                raise SystemExit(f"{agent.name} has lost its link")
            if number % 3 == 0:
                connection.send(CODEC.encode(Bye(code=1000, why="bench")))
            elif number % 3 == 1:
                connection.abort()
        await fleet.leave()

    async def settled(self, expected: int | None = None) -> EnduranceSample:
        """The node when it has closed what has left; SystemExit if it holds more descriptors than `expected`."""
        deadline, found = time.monotonic() + PATIENCE, descriptors(self._process.pid)
        while expected is not None and found > expected:
            if time.monotonic() > deadline:
                raise SystemExit(f"{found} descriptors after {self.accepts} accepts, {expected} before")
            await asyncio.sleep(0.05)
            found = descriptors(self._process.pid)
        if expected is None:
            await asyncio.sleep(2)  # the first sample: nothing says which number to wait for
            found = descriptors(self._process.pid)
            self._process.collect()
            self._process.stop_collecting()
        pid, remembered = self._process.pid, await asyncio.to_thread(kept, self._admin)
        threads = len(os.listdir(f"/proc/{pid}/task"))
        return EnduranceSample(self.accepts, found, memory(pid).uss, remembered, threads, cpu_us(pid))


async def endure(accepts: int, crowd: int, strays: int, seconds: float, folder: Path) -> dict[str, object]:
    async with EmbeddedValkey(folder / "valkey") as valkey:
        process, api, admin = Peers(folder, fetch=False).gateway(valkey.url, folder)
        try:
            async with TimerWheel(silence=3600) as timer_wheel:
                fleet = SimulatedFleet(f"ws://127.0.0.1:{process.port}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
                run = Endurance(process, (api, admin), fleet, crowd, strays)
                for _ in range(WARM):
                    await run.round()
                samples = [await run.settled()]
                until = time.monotonic() + seconds
                while run.accepts < accepts and time.monotonic() < until:
                    await run.round()
                    samples.append(await run.settled(samples[0].descriptors))
                    last = samples[-1]
                    print_progress(f"{last.accepts:,} accepts: {last.descriptors} descriptors, {last.uss >> 10:,} KiB, "
                                   f"{last.kept >> 10:,} of them of the last commands")  # fmt: skip
                await fleet.join(crowd)
                code = await process.drained()
                if code or fleet.linked:
                    raise SystemExit(f"the node has drained with exit code {code} and {fleet.linked} of its links open")
        finally:
            process.stop()
    return {"commands": run.commands, "crowd": crowd, "strays": strays, "samples": [asdict(one) for one in samples]}


def show(figures: dict[str, object]) -> int:
    """Print the rounds in some ten lines; returns the bytes that the node has grown by, beside its last commands."""
    samples = figures["samples"]
    assert isinstance(samples, list)
    every = max(1, len(samples) // 10)
    shown = [*samples[:-1:every], samples[-1]]
    table(
        [f"accepts, {figures['commands']:,} commands among them", "descriptors", "threads", "USS KiB",
         "of the last commands KiB", "CPU s"],
        [
            [f"{one['accepts']:,}", str(one["descriptors"]), str(one["threads"]), f"{one['uss'] >> 10:,}",
             f"{one['kept'] >> 10:,}", f"{one['cpu_us'] / 1e6:,.1f}"]
            for one in shown
        ],
    )  # fmt: skip
    first, last = (one["uss"] - one["kept"] for one in (samples[0], samples[-1]))
    return int(last - first)


async def main_async(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        figures = await endure(given.accepts, given.crowd, given.strays, given.seconds, Path(name))
    grown = show(figures)
    if given.out is not None:
        given.out.write_text(json.dumps(figures, indent=2))
    if grown > GROWTH:
        raise SystemExit(f"the node has grown by {grown >> 10:,} KiB: expected at most {GROWTH >> 10:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Agents that come and go: descriptors and memory of a node.")
    parser.add_argument("--accepts", type=int, default=20_000, help="connections in all, about")
    parser.add_argument("--crowd", type=int, default=500, help="agents in each round")
    parser.add_argument("--strays", type=int, default=1_500, help="other connections in each round")
    parser.add_argument("--seconds", type=float, default=3_600, help="no further round begins after them")
    parser.add_argument("--out", type=Path)
    uvloop.run(main_async(parser.parse_args()))


if __name__ == "__main__":
    main()
