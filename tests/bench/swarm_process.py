"""`fairlead swarm` as a process of its own: the agents that a benchmark holds, or that storm a gateway.

`hold` and `storm` start it; it never measures anything.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.output import print_progress
from bench.probe import children, set_autogroup

PORTS = 6_500
"""Connections from one source address: from a quarter of its ports on (7,058) binding searches for milliseconds."""


def addresses(agents: int, least: int = 1) -> int:
    """How many source addresses so many agents need."""
    return max(least, math.ceil(agents / PORTS))


class BenchSwarm:
    """Agents `NAME-N`, until it is stopped. With `nice` it yields to all others, and never runs in real time."""

    def __init__(self, name: str, url: str, folder: Path, agents: int, *flags: str, nice: int = 0) -> None:
        self._err, self._out, self._nice = folder / f"{name}.err", folder / f"{name}.json", nice
        with self._err.open("wb") as err, self._out.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    *(("nice", "-n", str(nice)) if nice else ()), sys.executable, "-m", "fairlead", "swarm",
                    "--url", url, "--agents", str(agents), "--id-prefix", name, "-o", "json", *flags,
                ],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip
        if nice:
            os.sched_setscheduler(self._process.pid, os.SCHED_OTHER, os.sched_param(0))

    @property
    def pids(self) -> list[int]:
        return children(self._process.pid)

    @property
    def holds(self) -> bool:
        """Whether all agents have been linked. A storm begins in this moment."""
        lines = self._err.read_text()
        if self._process.poll() is not None:
            raise SystemExit(f"the swarm has ended:\n{lines[-2000:]}")
        held = "holding:" in lines
        if held and self._nice:
            for pid in self.pids:
                set_autogroup(pid, self._nice)  # each has a session of its own, where nice alone does nothing
        return held

    async def holding(self, timeout: float, pause: float) -> None:
        """Wait until it holds its agents, and tell how far it is, with a look every `pause` seconds."""
        deadline, shown = time.monotonic() + timeout, ""
        while not self.holds:
            lines = self._err.read_text().splitlines()
            if time.monotonic() > deadline:
                raise SystemExit(f"the swarm does not hold its agents after {timeout:g} s:\n" + "\n".join(lines[-20:]))
            if lines and lines[-1] != shown:
                print_progress(f"   {(shown := lines[-1]).strip()}")
            await asyncio.sleep(pause)

    def end(self) -> dict[str, Any]:
        """Have its agents leave. Returns its report."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.wait(120)
        found: dict[str, Any] = json.loads(self._out.read_text() or "{}")
        return found
