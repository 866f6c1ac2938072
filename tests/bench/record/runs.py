"""The programs of the record in their order, and how one is run: as a process of its own, bounded, its result kept.

Called by `run.py`. A result is a JSON file with the figures and with how they came about: time, commit, machine, load.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from bench.output import print_progress
from bench.peers.c_programs import CACHE, ROOT

SCALES = ("full", "quick", "smoke")


@dataclass(frozen=True)
class Run:
    """One program of the record."""

    name: str
    tables: str
    """The tables of docs/benchmarks.md that come from it."""
    module: str
    minutes: float
    """Of a full run on a quiet machine with two cores; three times as long is the bound."""
    arguments: dict[str, list[str]] = field(default_factory=dict)
    """By scale; without an entry `--scale` is passed on."""

    def command(self, scale: str) -> list[str]:
        return ["-m", self.module, *self.arguments.get(scale, ["--scale", scale])]


RUNS = (
    Run("links", "connect and timestamp; bytes and echo; the node", "bench.links.run", 13),
    Run(
        "workers", "even workers", "bench.workers", 1,
        {
            "full": ["--links", "10000", "--workers", "8"], "quick": ["--links", "2000", "--workers", "4"],
            "smoke": ["--links", "60", "--workers", "2"],
        },
    ),
    Run(
        "hold", "agents held", "bench.hold", 8,
        {
            "full": ["--agents", "200000", "--rate", "1500", "--killed", "10"],
            "quick": ["--agents", "5000", "--rate", "500", "--watched", "10"],
            "smoke": ["--agents", "60", "--watched", "1", "--commands", "100"],
        },
    ),
    Run("market", "market data", "bench.market.run", 10),
    Run(
        "hosts", "one command on 200 hosts", "bench.hosts.run", 1,
        {"full": ["--hosts", "200"], "quick": ["--hosts", "200", "--turns", "1"],
         "smoke": ["--hosts", "5", "--turns", "1", "--no-fetch"]},
    ),
    Run(
        "handlers", "handlers", "bench.agent.handlers", 4,
        {"full": ["--rounds", "5"], "quick": ["--rounds", "1"],
         "smoke": ["--rounds", "1", "--fib", "5", "--sleep", "0.01"]},
    ),
    Run("nodes", "several nodes", "bench.nodes", 4),
    Run("tls", "TLS beside nginx", "bench.tls.run", 3),
)  # fmt: skip


def folder(scale: str) -> Path:
    """Where the results of a scale are kept."""
    return CACHE / "record" / scale


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": os.cpu_count(), "gib": round(int(total.split()[1]) / 2**20),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(), "kernel": platform.release(),
        "python": platform.python_version(), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def make(run: Run, scale: str, results: Path) -> bool:
    """Run it and keep its result; False if it failed, which it has then printed."""
    results.mkdir(parents=True, exist_ok=True)
    result, partial = results / f"{run.name}.json", results / f"{run.name}.partial.json"
    partial.unlink(missing_ok=True)
    began, state, measured = time.time(), machine(), commit()
    command = run.command(scale)
    print_progress(f"\n== {run.name}: {run.tables}; about {run.minutes:g} min at full scale")
    try:
        _run_alone(
            [sys.executable, "-I", *command, "--out", str(partial)], run.minutes * 180,
            subprocess.DEVNULL if scale == "smoke" else sys.stderr,
        )  # fmt: skip
        figures = json.loads(partial.read_text())
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        status = f"exit status {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else str(error)
        print_progress(f"!! {run.name} failed ({status}); what it printed stands above")
        return False
    kept = {
        "run": run.name, "scale": scale, "command": "python " + " ".join(command), "commit": measured,
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began)), "seconds": round(time.time() - began),
        "machine": state, "load_after": round(os.getloadavg()[0], 1), "figures": figures,
    }  # fmt: skip
    partial.write_text(json.dumps(kept, indent=1))
    partial.replace(result)  # whole or not at all: --resume trusts what it finds
    return True


def _run_alone(command: list[str], timeout: float, stdout: int | TextIO) -> None:
    """Run a program in a process group of its own, of which nothing is left afterwards: a server that outlived it would
    be on the core of the next one. Raises SubprocessError."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, process_group=0) as program:
        try:
            status = program.wait(timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    if status:
        raise subprocess.CalledProcessError(status, command)
