"""One command on each of 200 hosts: through the gateway to 200 agents, and by asyncssh to 200 servers.

`python -m bench.hosts.run --hosts 200` prints a table and may write a JSON file. All of it is on this machine, and both
kinds of hosts answer without starting a program.
Serial and at once; asyncssh also with all connections made beforehand, which is what a gateway's links are. CPU time
of both sides is counted: a caller's encryption is a part of what a command costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.api import ApiConnection
from bench.nodes import BenchGateway, running
from bench.output import medians, print_progress, table
from bench.peers.installation import Installation
from bench.probe import cpu_us
from support.simulated_fleet import SimulatedFleet

SCRIPT = Path(__file__).resolve().parent.parent / "peers" / "ssh_hosts.py"
SSH_WAYS = ("serial", "concurrent", "connected")
AT_ONCE = 64
"""Connections of the caller to the API. The agents' links are as many as there are hosts."""
TIMEOUT = 120.0
Turns = dict[str, list[dict[str, float]]]


class GatewayHosts:
    """Agents of one node, commanded through its API. The caller and the agents live in this process."""

    def __init__(self, hosts: int, gateway: BenchGateway, valkey: int) -> None:
        self._hosts = hosts
        self._gateway = gateway
        self._valkey = valkey

    async def turn(self, at_once: int) -> dict[str, float]:
        callers = [await ApiConnection.open(self._gateway.api, DEVELOPMENT_PLATFORM_TOKEN) for _ in range(at_once)]
        left = iter(range(self._hosts))
        gateway, valkey = cpu_us(self._gateway.pid), cpu_us(self._valkey)

        async def work(caller: ApiConnection) -> None:
            for number in left:
                await caller.command(f"host-{number}")

        started, own = time.perf_counter(), time.process_time()
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*(work(caller) for caller in callers))
        found = {
            "seconds": time.perf_counter() - started, "caller_ms": (time.process_time() - own) * 1000,
            "hosts_ms": (cpu_us(self._gateway.pid) - gateway + cpu_us(self._valkey) - valkey) / 1000,
        }  # fmt: skip
        for caller in callers:
            caller.close()
        return found


@asynccontextmanager
async def gateway_hosts(hosts: int, folder: Path) -> AsyncIterator[GatewayHosts]:
    async with EmbeddedValkey(folder / "valkey") as valkey, TimerWheel(silence=3600) as timer_wheel:
        gateway = BenchGateway("hosts", valkey.url, folder)
        with running(gateway):
            fleet = SimulatedFleet(f"ws://127.0.0.1:{gateway.link}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
            await fleet.join(hosts, prefix="host")
            yield GatewayHosts(hosts, gateway, valkey.pid)
            await fleet.leave()


async def ssh_turn(python: Path, file: Path, server: int, way: str) -> dict[str, float]:
    before = cpu_us(server)
    done = await asyncio.to_thread(
        subprocess.run, [str(python), "-I", str(SCRIPT), "call", str(file), way],
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"asyncssh, {way}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found | {"hosts_ms": (cpu_us(server) - before) / 1000}


@asynccontextmanager
async def ssh_hosts(python: Path, hosts: int, folder: Path) -> AsyncIterator[tuple[Path, int]]:
    """The file that the servers wrote when all listen, and their process."""
    file = folder / "hosts.json"
    with (folder / "ssh.log").open("wb") as log:
        process = subprocess.Popen(
            [str(python), "-I", str(SCRIPT), "serve", str(hosts), str(file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        async with asyncio.timeout(TIMEOUT):
            while not file.exists() or not file.read_text().endswith("}"):
                if process.poll() is not None:
                    raise SystemExit(f"asyncssh does not serve:\n{(folder / 'ssh.log').read_text()[-2000:]}")
                await asyncio.sleep(0.05)
        yield file, process.pid
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 20)


async def measure(hosts: int, turns: int, fetch: bool, folder: Path) -> dict[str, dict[str, float]]:
    python = Installation(fetch).python
    taken: Turns = {}
    async with gateway_hosts(hosts, folder) as own:
        await own.turn(AT_ONCE)  # warm
        for turn in range(turns):
            print_progress(f"one command on each of {hosts} agents, {turn + 1} of {turns}")
            taken.setdefault("fairlead, serial", []).append(await own.turn(1))
            taken.setdefault("fairlead, concurrent", []).append(await own.turn(min(AT_ONCE, hosts)))
    if python is not None:
        async with ssh_hosts(python, hosts, folder) as (file, server):
            for turn in range(turns):
                print_progress(f"one command on each of {hosts} hosts by asyncssh, {turn + 1} of {turns}")
                for way in SSH_WAYS:
                    taken.setdefault(f"asyncssh, {way}", []).append(await ssh_turn(python, file, server, way))
    return {name: medians(all_turns) for name, all_turns in taken.items()}


async def run(hosts: int, turns: int, fetch: bool, out: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        found = await measure(hosts, turns, fetch, Path(name))
    head = ["one command on each host", "s", "caller CPU ms", "hosts CPU ms"]
    rows = [
        [way, f"{one['seconds']:.3f}", f"{one['caller_ms']:,.0f}", f"{one['hosts_ms']:,.0f}"]
        for way, one in found.items()
    ]
    table(head, rows)
    if out is not None:
        out.write_text(json.dumps({"hosts": hosts, "ways": found}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description="One command on many hosts, beside asyncssh.")
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--no-fetch", action="store_true", help="install nothing: asyncssh is left out if it is not there"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    uvloop.run(run(given.hosts, given.turns, not given.no_fetch, given.out))


if __name__ == "__main__":
    main()
