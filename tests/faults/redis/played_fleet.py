"""A fleet with commands on all agents while a Redis fails, and the judgement of what became of the commands.

The tests of Redis's servers use `played`, and so does each fault of the table (`faults.redis`). Nodes, agents, callers
and the ledger are those of the other faults (see `faults.run`).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.shards import SHARDS

from faults.fault_fleet import PLATFORM, FaultFleet
from faults.run import check_events, check_keys, check_states
from faults.traffic import FaultTraffic
from support.waiting import until

SEED = int(os.environ.get("FAULTS_SEED", "1"))
ALLOWED = frozenset({"ok", "cancelled", "cancel_unconfirmed", "agent_offline"})
LAST_MOMENT = frozenset(
    {"record_lost", "command_unknown", "outcome_unknown", "agent_unknown", "results_gap", "deadline"}
)
"""What a failover may bring besides, since replicas follow a moment later: the record is gone, or results, or the end,
which the deadline takes the place of, or input, for which the agent waits until then."""
MOST = 60
"""Commands that are open at once beside the probes, since an outage may last for a minute: without a bound, callers who
try again take this process all its time, and with it its agents, so that the outage lasts even longer."""
PAUSE = 0.7
"""Seconds between two probes of one agent."""


@dataclass
class Played:
    """What a fault has done to the commands."""

    commands: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    doubled: int = 0
    broken: int = 0
    heal: float = 0.0
    """The longest time, of all agents, between two commands that worked."""
    others: float = 0.0
    """The same of the agents that the fault does not concern."""


class Probes:
    """Commands to every agent, one after the other, by which it is known when each of them works."""

    def __init__(self, fleet: FaultFleet) -> None:
        self._fleet = fleet
        self.count = 0
        self._worked = {name: [time.monotonic()] for name in fleet.names}
        self._tasks = [asyncio.create_task(self._probe(name)) for name in fleet.names]

    async def _probe(self, agent: str) -> None:
        """Without an Idempotency-Key, which may be on another primary than the agent, and so never repeated."""
        await asyncio.sleep(self._fleet.rng.uniform(0, PAUSE))
        while True:
            key = f"probe {self.count}"
            self.count += 1
            payload = {"key": key, "count": 1, "width": 0, "pause": 0}
            body = {"agent": agent, "method": "work", "deadline": 10, "payload": payload}
            headers = {**PLATFORM, "accept": "application/x-ndjson"}
            url = f"http://127.0.0.1:{self._fleet.a_node().api}/v1/commands"
            try:
                answer = await self._fleet.http.post(url, json=body, headers=headers)
                if answer.status_code == 200 and '"state":"ok"' in answer.text.replace(" ", ""):
                    self._worked[agent].append(time.monotonic())
            except httpx2.RequestError:
                pass
            await asyncio.sleep(PAUSE)

    def doubled(self) -> int:
        """Probes that ran twice."""
        return sum(self._fleet.ledger.runs(f"probe {number}") > 1 for number in range(self.count))

    async def all_work(self, seconds: float = 120) -> None:
        """Wait until a command that was posted from now on has worked on each agent."""
        now = time.monotonic()
        await until(lambda: all(times[-1] > now + 2 * PAUSE for times in self._worked.values()), seconds)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def longest_gap(self, agents: Iterable[str]) -> float:
        gaps = [b - a for name in agents for a, b in zip(self._worked[name], self._worked[name][1:], strict=False)]
        return max(gaps, default=0.0)


@asynccontextmanager
async def played(
    folder: Path, redis: str, told: frozenset[str] = frozenset(), flags: Sequence[str] = (), *, agents: int = 36,
    rate: float = 20.0, seed: int = SEED, concerned: set[str] | None = None, result: Played | None = None,
    events: bool = True, results: bool = True,
) -> AsyncIterator[FaultFleet]:  # fmt: skip
    """A fleet with commands on all agents for as long as the block lasts, and then the judgement: no command may end
    in another way than `ALLOWED` and `told` say. With a `result`, every agent is probed. `concerned` are the agents
    that the fault concerns, None for all; the block may add to it. `events` and `results` say whether all of them have
    to be there afterwards."""
    probing, result = result is not None, result or Played()
    async with FaultFleet(folder, random.Random(seed), agents=agents, redis=redis, flags=flags) as fleet:
        async with FaultTraffic(fleet, rate, most=MOST) as traffic:
            probes = Probes(fleet) if probing else None
            try:
                await asyncio.sleep(1.0)  # commands are everywhere before the fault comes
                yield fleet
                await fleet.all_online(120)
                if probes is not None:
                    await probes.all_work()
                await asyncio.sleep(1.0)
            finally:
                if probes is not None:
                    probes.stop()
        await traffic.settle()
        await fleet.stop_events()
        judgement = fleet.ledger.judge()
        result.commands, result.outcomes = judgement.commands, judgement.outcomes
        result.lost, result.doubled = len(judgement.lost), len(judgement.doubled)
        result.broken = len(judgement.broken)
        felt = set(fleet.names) if concerned is None else concerned
        if probes is not None:
            result.doubled += probes.doubled()
            assert not probes.doubled(), "a probe ran twice"
            result.heal = probes.longest_gap(felt)
            result.others = probes.longest_gap(set(fleet.names) - felt)
        assert judgement.clean, judgement.describe()
        strange = [entry for entry in fleet.ledger.entries if entry.outcome not in ALLOWED | told]
        assert not strange, "\n".join([str(judgement.outcomes), *map(str, strange[:5])])
        assert judgement.outcomes["ok"] > judgement.commands / 3
        if not told:
            await check_states(fleet, lost_data=False, dropped=not results)
        if not told and events:
            await check_events(fleet)
        await check_keys(fleet)


async def answering(fleet: FaultFleet) -> None:
    """Wait until every primary answers a call."""

    async def holds() -> bool:
        keys = [schema.index_key(shard) for shard in range(SHARDS)]
        try:
            replies = await fleet.store.submit_each([("EXISTS", key) for key in keys])
        except BusUnavailable:
            return False
        return not any(isinstance(reply, Exception) for reply in replies)

    await until(holds, 90)
    fleet.repair()
