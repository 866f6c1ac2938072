"""Plays faults on real processes while commands run on all agents, and judges the outcome of the commands.

    python -m faults.run                             every fault once
    python -m faults.run       --seed 7 --fault kill_holder --rounds 5
    python -m faults.run       --soak 30             minutes of faults in random order

The seed decides which node, agent and moment a fault chooses; it is printed first and replays the choices. Exits with
1 when a command was lost, doubled or broken, or when something was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import uvloop

from fairlead.store.reply import items, octets

from faults.fault_fleet import FaultFleet
from faults.scenarios import SCENARIOS
from faults.traffic import DEADLINE, FaultTraffic

OWNED = (
    "fl1:nodes",
    "fl1:data_epoch",
    "fl2:agent:",
    "fl1:agents:",
    "fl1:columns:",
    "fl1:cells:",
    "fl2:deadlines:",
    "fl2:kept",
    "fl1:events",
    "fl1:moves",
    "fl1:recent_runs",
    "fl1:compared_server",
    "fl1:compared_primary:",
)
"""Keys without a TTL: see fleet/schema.py."""
GROWTH = 40 << 20
"""Bytes that a node may have grown by: caches and the allocator's slack. What leaked would grow with the rounds."""


ALLOWED = {
    "empty_valkey": frozenset({"record_lost", "command_unknown", "agent_unknown"}),
    "one_identity_twice": frozenset({"outcome_unknown"}),
    "replace_agents": frozenset({"outcome_unknown"}),
    "replace_behind_frozen": frozenset({"outcome_unknown"}),
    "kill_machines": frozenset({"outcome_unknown"}),
}
"""Errors that a fault may bring to commands; all others let every command end as its caller wished."""
EXPLAINED = frozenset({"ok", "cancelled", "cancel_unconfirmed", "agent_offline"})
"""What any fault may bring, because it hangs on how long an agent was away: the ledger judges it command by command."""
RATES = {"kill_valkey": 100.0}
"""Commands per second, at least, where the fault is about load."""


@dataclass(slots=True)
class Tally:
    """The runs of one fault."""

    runs: int = 0
    commands: int = 0
    lost: int = 0
    doubled: int = 0
    broken: int = 0
    forgotten: int = 0
    refused: int = 0
    """Appends of nodes that had lost the agent. None where a node closed its links before it tried."""
    stall: float = 0.0
    recovery_seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)


async def play(name: str, rng: random.Random, agents: int, rate: float, tally: Tally) -> None:
    """One run of one fault. Raises AssertionError with what was wrong."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        try:
            async with FaultFleet(Path(folder), rng, agents=agents, line=name == "cut_off") as fleet:
                await _play(name, fleet, rate, tally)
        except BaseException:
            kept = Path(tempfile.mkdtemp(prefix="faults-logs-"))
            for log in Path(folder).glob("*.log"):
                (kept / log.name).write_bytes(log.read_bytes())
            print(f"  the nodes' logs are in {kept}", flush=True)
            raise


async def _play(name: str, fleet: FaultFleet, rate: float, tally: Tally) -> None:
    before = {node.name: node.rss() for node in fleet.nodes}
    async with FaultTraffic(fleet, max(rate, RATES.get(name, 0.0))) as traffic:
        await SCENARIOS[name](fleet, traffic)
        if not fleet.repaired_at:
            fleet.repair()
        await fleet.all_online()
        await asyncio.sleep(1.0)  # some traffic on the fleet as it is now
    await traffic.settle()
    await fleet.stop_events()
    judgement = fleet.ledger.judge()
    for node in fleet.nodes:
        tally.refused += int(await fleet.metric(node, "fairlead_appends_fenced_total"))
    tally.stall = max([tally.stall, *(entry.stall for entry in fleet.ledger.entries)])
    tally.recovery_seconds = max(
        [tally.recovery_seconds, *(entry.recovery_seconds(fleet.repaired_at) for entry in fleet.ledger.entries)]
    )
    tally.runs += 1
    tally.commands += judgement.commands
    tally.lost += len(judgement.lost)
    tally.doubled += len(judgement.doubled)
    tally.broken += len(judgement.broken)
    tally.forgotten += len(judgement.forgotten)
    tally.outcomes.update(judgement.outcomes)
    assert judgement.clean, judgement.describe()
    others = judgement.outcomes.keys() - EXPLAINED - ALLOWED.get(name, frozenset())
    assert not others, f"{name} must not end a command like that: {judgement.outcomes}"
    assert judgement.outcomes.get("ok", 0) > judgement.commands / 3, f"few went well: {judgement.outcomes}"
    await check_states(fleet, lost_data=name == "empty_valkey")
    await check_events(fleet)
    await check_keys(fleet)
    await _check_resources(fleet, before)


async def check_states(fleet: FaultFleet, *, lost_data: bool, dropped: bool = False) -> None:
    """Every command is over, in one state, which is the one that its caller received. `dropped`: results may have been
    dropped after the end, to make room."""
    api = fleet.a_node().api
    for entry in fleet.ledger.entries:
        if not entry.id:
            continue
        answer = await _answer(fleet, f"http://127.0.0.1:{api}/v1/commands/{entry.id}")
        if answer.status_code == 404 and (lost_data or entry.error in ("agent_unknown", "agent_offline")):
            continue
        assert answer.status_code == 200, f"{entry}: {answer.text}"
        found = answer.json()
        assert sum(found["counts"].values()) == len(found["targets"]) == 1, found
        assert not entry.ends or [found["state"]] == entry.ends, f"told {entry.ends}, stands {found['state']}: {entry}"
        for node in fleet.nodes:
            url = f"http://127.0.0.1:{node.api}/v1/commands/{entry.id}/results?from=0&follow=true"
            text, read = "", await _answer(fleet, url)
            if dropped and read.status_code == 410 and read.json()["code"] == "results_dropped":
                continue
            for raw in read.text.splitlines():
                result = json.loads(raw)
                text = "" if result.get("kind") == "retry" else text + result.get("text", "")
            assert not entry.ends or text == entry.text, f"{node.name} returns other results than before: {entry}"


async def _answer(fleet: FaultFleet, url: str) -> httpx2.Response:
    """What a caller gets who asks again for as long as the answer, or its last line, is an error that passes."""
    deadline = time.monotonic() + 60
    while True:
        answer = await fleet.http.get(url)
        last = answer.text.rstrip().rpartition("\n")[2]
        problem = json.loads(last) if last else {}
        passes = problem.get("temporary") or (problem.get("error") or {}).get("temporary")
        if not passes or time.monotonic() > deadline:
            return answer
        await asyncio.sleep(0.2)


async def check_events(fleet: FaultFleet) -> None:
    """Every event of qos 1 is stored, once at least."""
    deadline = time.monotonic() + 20
    while True:
        stored = set()
        for entry in items(await fleet.redis("XRANGE", "fl1:events", "-", "+")):
            fields = items(items(entry)[1])
            stored.add(json.loads(octets(fields[fields.index(b"p") + 1])))
        missing = fleet.ledger.emitted - stored
        if not missing:
            return
        assert time.monotonic() < deadline, f"{len(missing)} events were not stored: {sorted(missing)[:5]}"
        await asyncio.sleep(0.5)


async def check_keys(fleet: FaultFleet) -> None:
    """Only keys with an owner stay for ever, and no command is in the deadline queue any more."""
    keys: list[str] = []
    for owner in fleet.store.owners():
        cursor = b"0"
        while True:
            found = items(await fleet.store.submit_to(owner, "SCAN", cursor, "COUNT", 1000))
            cursor, page = octets(found[0]), items(found[1])
            keys += [octets(key).decode() for key in page]
            if cursor == b"0":
                break
    endless = [key for key in keys if not key.startswith(OWNED) and await fleet.redis("PTTL", key) == -1]
    assert not endless, f"keys without an end: {endless[:5]}"
    # A command that was posted again after its key was forgotten, and ended for its caller before the answer came, runs
    # on without anybody who follows or cancels it. Its deadline ends it.
    end = time.monotonic() + DEADLINE + 20
    for key in filter(lambda key: key.startswith("fl2:deadlines:"), keys):
        while due := items(await fleet.redis("ZRANGE", key, 0, -1, "WITHSCORES")):
            assert time.monotonic() < end, f"the command sweeper is not done with {key}: {due}"
            await asyncio.sleep(0.5)


async def _check_resources(fleet: FaultFleet, before: dict[str, int]) -> None:
    """Tasks, followers and connections are back at their initial numbers, and memory nearly so."""
    deadline = time.monotonic() + 20
    for node in fleet.nodes:
        while left := [n for n in ("tasks", "followers") if await fleet.metric(node, f"fairlead_{n}")]:
            assert time.monotonic() < deadline, f"{node.name} has kept {left}"
            await asyncio.sleep(0.1)
        grown = node.rss() - before[node.name]
        assert grown < GROWTH, f"{node.name} has grown by {grown >> 20} MiB"
    async with asyncio.timeout(20):
        while sum([await fleet.metric(node, "fairlead_links") for node in fleet.nodes]) != len(fleet.everybody):
            await asyncio.sleep(0.1)


def report(tallies: dict[str, Tally]) -> None:
    columns = (
        "fault,runs,commands,ok,told otherwise,lost,doubled,broken,key forgotten,refused,longest silence,worst heal"
    )
    print(f"\n| {columns.replace(',', ' | ')} |")
    print("|---" * len(columns.split(",")) + "|")
    for name, t in tallies.items():
        others = ", ".join(f"{n} {word}" for word, n in sorted(t.outcomes.items()) if word != "ok")
        print(
            f"| {name} | {t.runs} | {t.commands} | {t.outcomes['ok']} | {others or '-'} | {t.lost} | {t.doubled} "
            f"| {t.broken} | {t.forgotten} | {t.refused} | {t.stall:.1f} s | {t.recovery_seconds:.1f} s |"
        )


async def run(faults: list[str], rounds: int, soak: float, seed: int, agents: int, rate: float) -> int:
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    tallies = {name: Tally() for name in faults}
    failed = 0
    end = time.monotonic() + soak * 60
    turn = 0
    while turn < rounds * len(faults) or time.monotonic() < end:
        name = faults[turn % len(faults)] if not soak else rng.choice(faults)
        turn += 1
        print(f"{turn}: {name}", flush=True)
        try:
            await play(name, random.Random(rng.random()), agents, rate, tallies[name])
        except (AssertionError, TimeoutError) as e:
            failed += 1
            print(f"  FAILED: {e!r}", flush=True)
    report(tallies)
    return min(failed, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Plays faults on a fleet and judges what became of its commands.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--fault", action="append", choices=sorted(SCENARIOS), help="one of them; repeatable")
    parser.add_argument("--rounds", type=int, default=1, help="of each fault")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="in random order, for so long")
    parser.add_argument("--agents", type=int, default=40)
    parser.add_argument("--rate", type=float, default=20.0, help="commands per second")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        work = run(
            given.fault or list(SCENARIOS), 0 if given.soak else given.rounds, given.soak, given.seed, given.agents,
            given.rate,
        )  # fmt: skip
        sys.exit(uvloop.run(work))


if __name__ == "__main__":
    main()
