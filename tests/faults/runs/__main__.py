"""Plays faults in the middle of runs over thousands of simulated agents, judges each run, and prints the table.

    python -m faults.runs --agents 10000                      every fault once
    python -m faults.runs --agents 1000 --seed 7 --fault owner_frozen --rounds 5

The seed decides which node is asked when; it is printed first. Exits with 1 if the sums of a run did not add up, if
something ran twice, or if something was left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import uvloop

from fairlead.swarm.system import open_files, raise_open_files

from faults.runs.play import FAULTS, play
from faults.runs.run_fault import RunFault
from faults.runs.run_judgement import Judged

SPARE_FILES = 500
"""Open files besides those of the agents' connections: Redis, requests to the nodes, logs."""
COLUMNS = (
    "fault in the middle of a run", "played as", "runs", "targets", "ok", "otherwise", "executed", "run twice",
    "longest time without an end", "whole run",
)  # fmt: skip


@dataclass
class Row:
    """All runs of one fault."""

    runs: int = 0
    targets: int = 0
    executed: int = 0
    twice: int = 0
    pause: float = 0.0
    seconds: float = 0.0
    failures: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)

    def add(self, found: Judged) -> None:
        self.runs += 1
        self.targets += found.targets
        self.executed += found.executed
        self.twice += found.twice
        self.pause, self.seconds = max(self.pause, found.longest_pause), max(self.seconds, found.seconds)
        self.counts.update({word: count for word, count in found.counts.items() if word != "failed"})
        self.codes.update(found.codes)


def report(rows: dict[str, Row]) -> None:
    print(f"\n| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for name, row in rows.items():
        others = [*row.codes.items(), *row.counts.items()]
        otherwise = ", ".join(f"{n:,} {word}" for word, n in sorted(others) if word != "ok") or "-"
        failed = f" ({row.failures} FAILED)" if row.failures else ""
        print(
            f"| {FAULTS[name].words}{failed} | `{name}` | {row.runs} | {row.targets:,} | {row.counts['ok']:,} "
            f"| {otherwise} | {row.executed:,} | {row.twice} | {row.pause:.1f} s | {row.seconds:.1f} s |"
        )


async def run(chosen: Sequence[RunFault], rounds: int, seed: int, agents: int) -> int:
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    rows: dict[str, Row] = {}
    for _ in range(rounds):
        for fault in chosen:
            row = rows.setdefault(fault.name, Row())
            found, began = Judged(), time.monotonic()
            print(fault.name, end=" ", flush=True)
            with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                try:
                    await play(fault, Path(folder), rng.randrange(1 << 32), found, agents)
                except (AssertionError, TimeoutError, RuntimeError, httpx2.RequestError) as e:
                    row.failures += 1
                    where = traceback.extract_tb(e.__traceback__)[-3:]
                    print(f"FAILED: {e!r} at {[f'{at.name}:{at.lineno}' for at in where]}", end=" ", flush=True)
                    kept = Path(tempfile.mkdtemp(prefix="faults-logs-"))
                    for log in Path(folder).glob("*.log"):
                        (kept / log.name).write_bytes(log.read_bytes())
                    print(f"the nodes' logs are in {kept}", end=" ", flush=True)
            row.add(found)
            print(f"{time.monotonic() - began:.0f} s, {found.counts} {dict(found.codes)}", flush=True)
    report(rows)
    return min(1, sum(row.failures for row in rows.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Plays faults in the middle of runs, and judges each run.")
    parser.add_argument("--agents", type=int, default=10_000, help="simulated ones; 0 for 24 of the SDK")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="one of them; repeatable")
    parser.add_argument("--rounds", type=int, default=1, help="of each fault")
    given = parser.parse_args()
    raise_open_files()  # the agents connect through a balancer in this process, which has two connections for each
    if given.agents > (most := (open_files() - SPARE_FILES) // 2):
        parser.error(
            f"--agents {given.agents}: a process may have {open_files()} open files here, which suffices for {most} "
            "agents (raise `ulimit -Hn` for more)"
        )
    chosen = [FAULTS[name] for name in given.fault or FAULTS]
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(uvloop.run(run(chosen, given.rounds, given.seed, given.agents)))


if __name__ == "__main__":
    main()
