"""Commands on all agents all the time, and quick ones on a sample of them.

    python -m trial.traffic KIND URL COUNT FILE [LINES PAUSE BETWEEN]

Started by `programs` as a process of its own: one that shared its interpreter with the trial would be stopped by each
kubectl. Each agent has a caller of its own: it posts a command that streams lines for some seconds, follows it to its
end, pauses, and posts the next one. `api` says how that is done with each of the fleets. Every request is a connection
of its own, so that the Service gives each to another pod. FILE gets a line of JSON for everything that is over. SIGTERM
ends the posts, and the process ends when its last command has.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Protocol

import aiohttp
import uvloop

from trial.agents import name
from trial.api import FairleadApi, PlainApi
from trial.calls import OPEN, Call, Probe

SAMPLE, PROBES = 5, 5.0
"""Agents that are probed, and probes of each in a second."""
UNANSWERED = 50
"""Probes of one agent that may be without an answer; while there are so many, it is not asked."""
END = 260.0
"""Seconds for the ends of all commands when the trial stops: longer than any caller goes on."""
LAG = 0.25
"""Seconds between two looks at how late the event loop is."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What each caller does. Times are in seconds."""

    lines: int = 5
    pause: float = 4.0
    """Between two lines. A command takes 20 s: there are many in each chapter, and every fault meets some."""
    between: float = 20.0
    """At most, between two commands of an agent: two thirds of the agents are inside one at any moment."""


class CommandApi(Protocol):
    """A fleet as its callers see it. Nothing is raised but by cancellation."""

    failures: Counter[str]
    """Attempts that failed, by what they met: an error of the connection, or a temporary one of the API."""

    async def run(self, http: aiohttp.ClientSession, call: Call, pause: float) -> None:
        """Post the command and see it to its end."""

    async def answers(self, http: aiohttp.ClientSession, agent: str, key: str) -> bool:
        """Whether the agent answers."""


@dataclass(frozen=True, slots=True)
class Second:
    """What went on in the callers' program until `at`, since the last one that was written."""

    at: float
    lag: float
    """Seconds that its event loop was late, at most. Everything that callers measure may be late by as much."""
    failures: dict[str, int]
    open: int
    """Commands of which the last was not heard yet."""


@dataclass(slots=True)
class CallerLog:
    """All that callers wrote down."""

    calls: list[Call] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    seconds: list[Second] = field(default_factory=list)


def read(lines: Iterable[str]) -> CallerLog:
    """What is in FILE. Its last line may be half written."""
    caller_log = CallerLog()
    for line in lines:
        if line.endswith("\n"):
            kind, values = json.loads(line)
            if kind == "call":
                caller_log.calls.append(Call(**values))
            elif kind == "probe":
                caller_log.probes.append(Probe(**values))
            else:
                caller_log.seconds.append(Second(**values))
    return caller_log


class CallerTraffic:
    def __init__(self, api: CommandApi, agents: Sequence[str], seed: int, pace: Pace, sink: IO[str]) -> None:
        self._api = api
        self._agents = agents
        self._rng = random.Random(seed)
        self._pace = pace
        self._sink = sink
        self._stopping = asyncio.Event()
        self._open: dict[str, Call] = {}

    def stop(self) -> None:
        """No more posts."""
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`, and until the ends of those that were posted before."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        watch = asyncio.create_task(self._watch())
        async with aiohttp.ClientSession(connector=connector) as http:
            tasks = [asyncio.create_task(self._call_for_ever(http, agent)) for agent in self._agents]
            sample = self._rng.sample(self._agents, min(SAMPLE, len(self._agents)))
            tasks += [asyncio.create_task(self._probe_for_ever(http, agent)) for agent in sample]
            await self._stopping.wait()
            _, late = await asyncio.wait(tasks, timeout=END)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        watch.cancel()
        for call in self._open.values():
            call.outcome = OPEN
            self._write("call", call)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def _write(self, kind: str, what: Call | Probe | Second) -> None:
        self._sink.write(json.dumps((kind, asdict(what))) + "\n")

    async def _call_for_ever(self, http: aiohttp.ClientSession, agent: str) -> None:
        rng = random.Random(f"{self._rng.random()} {agent}")
        number = 0
        await self._sleep(rng.uniform(0, self._pace.lines * self._pace.pause + self._pace.between))
        while not self._stopping.is_set():
            call = Call(f"{agent}.{number}", agent, self._pace.lines, time.time())
            self._open[agent] = call
            number += 1
            await self._api.run(http, call, self._pace.pause)
            del self._open[agent]
            self._write("call", call)
            await self._sleep(rng.uniform(0, self._pace.between))

    async def _probe_for_ever(self, http: aiohttp.ClientSession, agent: str) -> None:
        asked: set[asyncio.Task[None]] = set()
        number = 0
        due = time.monotonic() + self._rng.uniform(0, 1 / PROBES)
        while not self._stopping.is_set():
            await self._sleep(max(0.0, due - time.monotonic()))
            due = max(due + 1 / PROBES, time.monotonic())
            if len(asked) < UNANSWERED:
                asked.add(task := asyncio.create_task(self._probe(http, agent, f"{agent}.probe.{number}")))
                task.add_done_callback(asked.discard)
                number += 1
        if asked:
            await asyncio.wait(asked)

    async def _probe(self, http: aiohttp.ClientSession, agent: str, key: str) -> None:
        posted = time.time()
        answered = await self._api.answers(http, agent, key)
        self._write("probe", Probe(agent, posted, time.time() if answered else 0.0))

    async def _watch(self) -> None:
        """Each second: how late this loop is, and what callers met."""
        loop = asyncio.get_running_loop()
        worst, reported = 0.0, Counter[str]()
        while True:
            since = time.time()
            while time.time() < since + 1:
                due = loop.time() + LAG
                await asyncio.sleep(LAG)
                worst = max(worst, loop.time() - due)
            failures = Counter(self._api.failures)
            self._write("second", Second(time.time(), worst, dict(failures - reported), len(self._open)))
            self._sink.flush()
            worst, reported = 0.0, failures

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            pass


async def main(kind: str, url: str, count: int, path: str, pace: Pace) -> None:
    api: CommandApi = PlainApi(url) if kind == "plain" else FairleadApi(url, os.environ["FAIRLEAD_PLATFORM_TOKEN"])
    with open(path, "w") as sink:
        traffic = CallerTraffic(api, [name(number) for number in range(count)], 1, pace, sink)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, traffic.stop)
        await traffic.run()


if __name__ == "__main__":
    kind, url, count, path, *rest = sys.argv[1:]
    pace = Pace(int(rest[0]), float(rest[1]), float(rest[2])) if rest else Pace()
    uvloop.run(main(kind, url, int(count), path, pace))
