"""A large file and a terminal on one agent: how long an echo takes alone, beside the transfer, and while its reader
has stopped. Prints a table and writes a JSON file.

`python -m bench.agent.lanes --mib 256`: one node with its own Valkey, one `fairlead agent run`, all on this machine.
The file is read through the API with retain=window by a process of its own, so that its decoding does not count as
latency. An echo is one octet typed into `shell` through the API and its coming back: input, agent, pty, results,
follower.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairlead.client import Client
from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN

from bench.nodes import BenchGateway, running
from bench.output import print_progress
from bench.probe import children
from bench.terminal import SHELL, MemoryWatch, Terminal, quantiles

MIB = 1 << 20
TIMEOUT = 60.0
AGENT = "bench-1"
LEAST_MIB = 12
"""What a reader that has stopped leaves on its way (2 MiB read, 4 kept by the gateway, the buffers of sockets) is less:
of a smaller file the agent would have read all, and be done with it.
"""
STOPPED = 5.0
"""Seconds for which the reader has stopped before anything is measured: what would grow has grown by then."""


@contextmanager
def reader(port: int, path: Path, stop_after: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that reads the file through the API. Its line on stdout tells how it went."""
    arguments = ["-m", "bench.agent.lanes", "--read", str(port), str(path), str(stop_after)]
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def read(port: int, path: str, stop_after: int) -> None:
    """The reader's own life."""
    digest, size, began = hashlib.sha256(), 0, time.perf_counter()
    async with (
        Client(f"http://127.0.0.1:{port}", DEVELOPMENT_PLATFORM_TOKEN) as client,
        client.command(AGENT, "file.get", {"path": path}, lane="bulk", retain="window", deadline=600) as command,
    ):
        async for chunk in command:
            if chunk.kind == "file":
                size += len(chunk.data)
                digest.update(chunk.data)
            if stop_after and size >= stop_after:
                print("stopped", flush=True)
                await asyncio.sleep(3600)
    took = time.perf_counter() - began
    result = command.end.payload if command.end is not None else None
    right = isinstance(result, dict) and result.get("sha256") == digest.hexdigest()
    print(json.dumps({"bytes": size, "seconds": round(took, 2), "digest_ok": right}), flush=True)


def position(pid: int, path: Path) -> int:
    """How far the agent has read the file."""
    try:
        for link in list(Path(f"/proc/{pid}/fd").iterdir()):
            with suppress(FileNotFoundError):  # closed meanwhile
                if link.readlink() == path:
                    info = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
                    return int(info.split()[1])
    except PermissionError as e:
        raise SystemExit(
            "only root may see which files an agent has open, since it closes its memory to other processes of its "
            "user: run this benchmark as root"
        ) from e
    raise SystemExit("the agent has read the whole file, although its reader has stopped")


async def measure(gateway: BenchGateway, agent: subprocess.Popen[bytes], path: Path, most: int) -> dict[str, object]:
    node = {"gateway": gateway.pid, "agent": agent.pid}
    node |= {f"valkey {pid}": pid for pid in children(gateway.pid)}
    figures: dict[str, object] = {"file_mib": path.stat().st_size // MIB}
    async with Client(f"http://127.0.0.1:{gateway.api}", DEVELOPMENT_PLATFORM_TOKEN) as client:
        async with asyncio.timeout(TIMEOUT):
            while not [one async for one in client.agents() if one.state == "online"]:
                await asyncio.sleep(0.1)
        async with client.command(AGENT, "shell", SHELL, deadline=600) as command:
            terminal = Terminal(command)
            await terminal.ready()
            await terminal.echoes(5.0, 30)
            watched = MemoryWatch(node)
            figures["rss_before"] = watched.sample()
            figures["echo_alone"] = quantiles(await terminal.echoes(TIMEOUT, most))
            looking = asyncio.create_task(watched.keep_sampling())
            with reader(gateway.api, path) as process:
                done = asyncio.create_task(asyncio.to_thread(process.stdout.readline))  # type: ignore[union-attr]
                times: list[float] = []
                while not done.done():
                    times += await terminal.echoes(1.0, most)
                figures["transfer"] = transfer = json.loads(await done)
            transfer["mib_per_s"] = round(transfer["bytes"] / MIB / transfer["seconds"], 1)
            figures["echo_beside"] = quantiles(times)
            figures["rss_largest"] = dict(watched.largest)
            with reader(gateway.api, path, 2 * MIB) as process:
                assert process.stdout is not None
                await asyncio.to_thread(process.stdout.readline)
                await asyncio.sleep(STOPPED)
                held = position(agent.pid, path)
                figures["echo_stopped"] = quantiles(await terminal.echoes(TIMEOUT, most))
                figures["stopped"] = {
                    "rss": watched.sample(),
                    "read_mib": round(position(agent.pid, path) / MIB, 1),
                    "moved_bytes": position(agent.pid, path) - held,
                }
            looking.cancel()
            await command.cancel()
    return figures


def show(figures: dict[str, object]) -> None:
    for name in ("echo_alone", "echo_beside", "echo_stopped", "transfer", "stopped"):
        print_progress(f"{name:13} {figures[name]}")
    for name in ("rss_before", "rss_largest"):
        sizes: dict[str, int] = figures[name]  # type: ignore[assignment]  # made above
        print_progress(f"{name:13} " + ", ".join(f"{process} {size / MIB:.1f} MiB" for process, size in sizes.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help=f"size of the file, {LEAST_MIB} to 1024")
    parser.add_argument("--echoes", type=int, default=300, help="echoes in each part")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not LEAST_MIB <= given.mib <= 1024:
        parser.error(f"--mib {given.mib} is out of range: give {LEAST_MIB} to 1024")
    if given.read:
        asyncio.run(read(int(given.read[0]), given.read[1], int(given.read[2])))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "file"
        with path.open("wb") as file:
            block = os.urandom(MIB)
            for _ in range(given.mib):
                file.write(block)
        gateway = BenchGateway("bench", "embedded", folder, "--data", str(folder / "valkey"))
        with running(gateway), (folder / "agent.log").open("wb") as log:
            link = f"ws://127.0.0.1:{gateway.link}"
            agent = subprocess.Popen(
                [sys.executable, "-m", "fairlead", "agent", "run", "--url", link, "--id", AGENT],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            try:
                figures = asyncio.run(measure(gateway, agent, path, given.echoes))
            finally:
                agent.terminate()
                agent.wait(TIMEOUT)
    show(figures)
    if given.out:
        given.out.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
