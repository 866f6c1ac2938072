"""Plays the faults of Redis while commands run on all agents, judges what became of the commands, and prints the table.

    python -m faults.redis                                    every fault once, with each durability
    python -m faults.redis --seed 7 --fault cluster.killed --rounds 5
    python -m faults.redis --short                            as `make test` plays some of them

The seed decides which agents get which commands; it is printed first and replays the choices. Exits with 1 when a
command was lost in silence, ran twice or ended in a way that its fault does not explain.
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

from faults.redis.play import FAULTS, play
from faults.redis.played_fleet import Played
from faults.redis.redis_fault import FULL, SHORT, Lengths, RedisFault

COLUMNS = (
    "fault", "played as", "durability", "runs", "commands", "ok", "told otherwise", "lost in silence", "run twice",
    "worst time until commands work again", "on other agents",
)  # fmt: skip


@dataclass
class Row:
    """All runs of one fault with one durability."""

    runs: int = 0
    commands: int = 0
    lost: int = 0
    doubled: int = 0
    heal: float = 0.0
    others: float = 0.0
    failures: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, played: Played) -> None:
        self.runs += 1
        self.commands += played.commands
        self.lost += played.lost
        self.doubled += played.doubled
        self.heal, self.others = max(self.heal, played.heal), max(self.others, played.others)
        self.outcomes.update(played.outcomes)


def report(rows: dict[tuple[str, str], Row]) -> None:
    print(f"\n| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for (name, durability), row in rows.items():
        told = ", ".join(f"{n} {word}" for word, n in sorted(row.outcomes.items()) if word != "ok") or "-"
        failed = f" ({row.failures} FAILED)" if row.failures else ""
        others = f"{row.others:.1f} s" if row.others else "-"
        print(
            f"| {FAULTS[name].words}{failed} | `{name}` | {durability} | {row.runs} | {row.commands:,} "
            f"| {row.outcomes['ok']:,} | {told} | {row.lost} | {row.doubled} | {row.heal:.1f} s | {others} |"
        )


async def run(chosen: Sequence[RedisFault], rounds: int, seed: int, lengths: Lengths) -> int:
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    rows: dict[tuple[str, str], Row] = {}
    for _ in range(rounds):
        for fault in chosen:
            for durability in fault.durabilities:
                row = rows.setdefault((fault.name, durability), Row())
                result, began = Played(), time.monotonic()
                print(f"{fault.name} {durability}", end=" ", flush=True)
                with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                    try:
                        await play(fault, durability, Path(folder), rng.randrange(1 << 32), lengths, result)
                    except (AssertionError, TimeoutError, RuntimeError, httpx2.RequestError) as e:
                        row.failures += 1
                        where = traceback.extract_tb(e.__traceback__)[-3:]
                        print(f"FAILED: {e!r} at {[f'{at.name}:{at.lineno}' for at in where]}", end=" ", flush=True)
                        kept = Path(tempfile.mkdtemp(prefix="faults-logs-"))
                        for log in Path(folder).glob("*.log"):
                            (kept / log.name).write_bytes(log.read_bytes())
                        print(f"the nodes' logs are in {kept}", end=" ", flush=True)
                row.add(result)
                print(f"{time.monotonic() - began:.0f} s, {result.outcomes}, heal {result.heal:.1f} s", flush=True)
    report(rows)
    return min(1, sum(row.failures for row in rows.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Plays faults of Redis on a fleet and judges its commands.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="one of them; repeatable")
    parser.add_argument("--rounds", type=int, default=1, help="of each fault")
    parser.add_argument("--short", action="store_true", help="faults that last for seconds")
    given = parser.parse_args()
    chosen = [FAULTS[name] for name in given.fault or FAULTS]
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(uvloop.run(run(chosen, given.rounds, given.seed, SHORT if given.short else FULL)))


if __name__ == "__main__":
    main()
