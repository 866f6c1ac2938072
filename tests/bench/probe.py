"""What the operating system reports about a process: CPU time and memory; and the duration of a garbage collection."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 30.0
QUIET = 0.02
"""Seconds without CPU time after which a server has done what it had to do."""
DRAIN_TIMEOUT = 120.0
"""Seconds: a node drains within a minute by default."""


class BenchProcess:
    """A server of the benchmark: pinned to the first core, so that the load on the second does not touch it."""

    def __init__(
        self, name: str, command: list[str], folder: Path, port: int, env: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.port = port
        self._gc = folder / f"{name}.gc"
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(env or {}), "BENCH_GC": str(self._gc)},
            )  # fmt: skip
        pin(self._process.pid, 0)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_listening(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"{self.name} does not listen on {self.port}:\n{self._log.read_text()[-2000:]}")

    def collect(self) -> float:
        """Make the process collect its garbage; returns the milliseconds."""
        self._gc.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + TIMEOUT
        while not self._gc.exists() or not self._gc.read_text():
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name} did not collect")
            time.sleep(0.02)
        return float(self._gc.read_text())

    def stop_collecting(self) -> None:
        """From now on the process frees only what nothing refers to."""
        os.kill(self.pid, signal.SIGUSR2)

    async def drained(self) -> int:
        """Ask the process to end in its own way, and wait until it has. Returns its exit code."""
        self._process.terminate()
        return await asyncio.to_thread(self._process.wait, DRAIN_TIMEOUT)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def pin(pid: int, core: int) -> None:
    if len(os.sched_getaffinity(0)) > 1 or (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(pid, {core})


def set_autogroup(pid: int, nice: int) -> bool:
    """Set the nice value of the session of this process; False if only root could. With sched_autogroup, Linux shares
    the CPU between sessions, and the nice values of their processes mean nothing to other sessions."""
    group = Path(f"/proc/{pid}/autogroup")
    try:
        if group.exists():
            group.write_text(str(nice))
    except OSError:
        return False
    return True


def cpu_us(pid: int) -> float:
    """CPU time of all threads so far, in microseconds (the scheduler's own count, in nanoseconds)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue  # a thread that just ended
    return total / 1000


def settled_cpu_us(pids: Collection[int]) -> float:
    """CPU time of some processes so far, once they use no more: clients that have just left still cost them some.
    Raises SystemExit if they go on using it."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        before = sum(map(cpu_us, pids))
        time.sleep(QUIET)
        if sum(map(cpu_us, pids)) - before < 200:
            return before
    raise SystemExit(f"a server still uses CPU time {TIMEOUT:g} s after its clients have left")


def pss(pid: int) -> int:
    """Proportional set size, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("no Pss in smaps_rollup: this benchmark needs Linux")


@dataclass(frozen=True)
class Memory:
    """Bytes: resident; that with what is shared divided by the sharers; its own alone."""

    rss: int
    pss: int
    uss: int


def memory(pid: int) -> Memory:
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size = line.split()[:2]
        found[name.rstrip(":")] = int(size) << 10
    return Memory(found["Rss"], found["Pss"], found["Private_Clean"] + found["Private_Dirty"])


def children(pid: int) -> list[int]:
    """The processes that this one has started and that still are."""
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]  # fmt: skip


def open_files(pid: int) -> int:
    """How many files a process has open; 0 if it has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
