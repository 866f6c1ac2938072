"""Plays attacks on a real node, one after the other, and shows what its owner sees meanwhile.

    python -m abuse.run                                   every attack at its full size: some half an hour
    python -m abuse.run          --attack flood_hb        one of them; repeatable
    python -m abuse.run          --short                  a small share of each
    python -m abuse.run          --soak 30                minutes of the two fuzzers

Each row: what the attacker did and was answered, how its attempts were refused, the healthy commands' p50 and p99
before and during it, what failed of them, of new links and of probes, and what the node took in memory and CPU time.
Exits with 1 when a promise is broken: the node ends or logs a traceback, a healthy command, link or probe fails, memory
grows by more than is allowed, or the attacker got what it must not. Times are shown and not judged: they depend on the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from abuse.attacker import PLAYS
from abuse.catalogue import ATTACKS, FUZZERS, Attack
from abuse.victim import Seen, Victim

QUIET = 20.0
"""Seconds of healthy commands before an attack at its full size: 600 of them, as a p99 needs."""


@dataclass(slots=True)
class AttackResult:
    """One attack and its effect."""

    name: str
    tried: dict[str, int]
    before: Seen
    during: Seen
    seconds: float
    grown: int
    """Bytes between the quiet node and its largest size during the attack."""
    cpu: float
    """Share of one core."""
    quiet_cpu: float = 0.0
    """The same before the attack."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """How often the attempts of the attack ended so; empty for attacks that do not count attempts."""
    broken: list[str] = field(default_factory=list)
    """Promises that did not hold."""

    @property
    def cost(self) -> float:
        """Microseconds of CPU time of the node for each attempt, without what it does for others."""
        return (self.cpu - self.quiet_cpu) * self.seconds * 1e6 / self.outcomes.total()


async def play(name: str, *, share: float = 1.0, seconds: float = 0.0) -> AttackResult:
    """Play one attack on a node of its own."""
    attack = ATTACKS[name]
    with tempfile.TemporaryDirectory(prefix="abuse-") as folder:
        async with Victim(
            Path(folder), files=attack.files, flags=attack.flags, stage=attack.stage, clock=attack.clock
        ) as victim:
            quiet, first = QUIET if share == 1 else QUIET / 20, victim.cpu()
            await asyncio.sleep(quiet)
            quiet_cpu = (victim.cpu() - first) / quiet
            before, memory, cpu, began = await victim.healthy.turn(), victim.memory(), victim.cpu(), time.monotonic()
            largest, tried = await _attacked(victim, name, share, seconds or attack.seconds)
            took = time.monotonic() - began
            during = await victim.healthy.turn()
            result = AttackResult(
                name, tried, before, during, took, largest - memory, (victim.cpu() - cpu) / took, quiet_cpu
            )
            if attack.refused:
                result.outcomes = _outcomes(tried)
            result.broken = _judged(victim, attack, result)
            if result.broken:
                kept = Path(tempfile.mkdtemp(prefix="abuse-log-")) / "node.log"
                kept.write_text(victim.log())
                print(f"  {name}: the node's log is {kept}", file=sys.stderr, flush=True)
            return result


async def _attacked(victim: Victim, name: str, share: float, seconds: float) -> tuple[int, dict[str, int]]:
    """Run the attacker to its end; returns the node's largest size meanwhile, and what the attacker counted."""
    process = await asyncio.create_subprocess_exec(
        "nice", "-n", "5", sys.executable, "-m", "abuse.attacker", name, victim.place(), str(share), str(seconds),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    reading = asyncio.create_task(process.stdout.read())
    largest = 0
    give_up = time.monotonic() + 2 * seconds + 120  # some attacks begin with servers of their own
    while process.returncode is None and time.monotonic() < give_up:
        if victim.alive:
            largest = max(largest, victim.memory())
        await asyncio.sleep(0.05)
    if process.returncode is None:
        process.kill()
    await process.wait()
    lines = (await reading).decode().splitlines()
    return largest, json.loads(lines[-1]) if lines else {"attacker ended by itself": process.returncode or 0}


def _outcomes(tried: dict[str, int]) -> Counter[str]:
    """How often attempts ended so. What the attacker counts of somebody who does no harm begins with "then"."""
    found: Counter[str] = Counter()
    for what, n in tried.items():
        kind, colon, outcome = what.rpartition(": ")
        if colon and not kind.startswith("then "):
            found[outcome] += n
    return found


def _judged(victim: Victim, attack: Attack, result: AttackResult) -> list[str]:
    broken = []
    if not victim.alive:
        broken.append("the node has ended")
    if (n := victim.log().count("Traceback")) > 0:
        broken.append(f"{n} tracebacks in its log")
    broken += [f"{n} × {what}" for what, n in result.during.failed.items()]
    if result.grown > attack.growth << 20:
        broken.append(f"grew by {result.grown >> 20} MiB, allowed are {attack.growth}")
    broken += [f"not seen: {what}" for what in attack.needed if what not in result.tried]
    broken += [f"seen: {what}" for what in result.tried if re.search(attack.forbidden, what)]
    if attack.refused:
        broken += [f"{n} × succeeded: {what}" for what, n in result.outcomes.items() if not _refused(attack, what)]
        broken += [] if result.outcomes else ["no attempt was made"]
    broken += [f"more than {most} {what}" for what, most in attack.most if result.tried.get(what, 0) > most]
    return broken


def _refused(attack: Attack, outcome: str) -> bool:
    return re.fullmatch(attack.refused, outcome) is not None


def row(result: AttackResult) -> str:
    quiet, during, outcomes = result.before, result.during, result.outcomes
    tried = ", ".join(f"{n:,} {what}" for what, n in sorted(result.tried.items()))
    refused = succeeded = cost = "–"
    if outcomes:
        attack, kinds = ATTACKS[result.name], {what.rpartition(": ")[0] for what in result.tried if ": " in what}
        kinds = {kind for kind in kinds if not kind.startswith("then ")}
        others = [f"; {n:,} {what}" for what, n in result.tried.items() if ": " not in what]
        tried = f"{outcomes.total():,} in {len(kinds)} kinds{''.join(others)}"
        refused = ", ".join(f"{n:,} × {what}" for what, n in outcomes.most_common() if _refused(attack, what))
        succeeded = str(sum(n for what, n in outcomes.items() if not _refused(attack, what)))
        cost = f"{result.cost:.0f}"
    worst = max(during.commands, default=float("nan"))
    return " | ".join(
        (
            f"| {result.name}",
            tried or "nothing",
            refused,
            succeeded,
            f"{quiet.percentile(0.5) * 1e3:.1f} / {quiet.percentile(0.99) * 1e3:.1f}",
            f"{during.percentile(0.5) * 1e3:.1f} / {during.percentile(0.99) * 1e3:.1f} / {worst * 1e3:.0f}",
            f"{len(during.commands)}, {len(during.links)}, {len(during.probes)}",
            ", ".join(result.broken) or "none",
            f"{result.grown / 2**20:+.1f}",
            f"{result.cpu:.0%}",
            f"{cost} |",
        )
    )


HEAD = (
    "attack", "tried", "refused, with what", "succeeded", "healthy p50 / p99 before, ms",
    "p50 / p99 / worst during, ms", "commands, links, probes that went well", "broken promises", "memory, MiB",
    "CPU of the node", "µs CPU of the node an attempt",
)  # fmt: skip


async def run(names: Sequence[str], share: float, soak: float) -> int:
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|", flush=True)
    broken: Counter[str] = Counter()
    for name in names:
        attack = ATTACKS[name]
        if soak:
            result = await play(name, seconds=soak * 60 / len(names))
        elif share < 1:
            result = await play(name, share=attack.short, seconds=max(attack.seconds / 10, 3.0))
        else:
            result = await play(name)
        print(row(result), flush=True)
        broken[name] += len(result.broken)
    return 1 if broken.total() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Plays attacks on a real node and shows what its owner sees.")
    parser.add_argument("--attack", action="append", choices=sorted(PLAYS), help="one of them; repeatable")
    parser.add_argument("--short", action="store_true", help="a small share of each")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="the fuzzers, for so long together")
    given = parser.parse_args()
    names = given.attack or (FUZZERS if given.soak else list(ATTACKS))
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(uvloop.run(run(names, 0.0 if given.short else 1.0, given.soak)))


if __name__ == "__main__":
    main()
