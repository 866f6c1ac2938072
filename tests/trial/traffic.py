"""Commands on all agents all the time, and quick ones on a sample of them. Runs in a thread with its own event loop.

Started by `run`, which waits for kubectl meanwhile. Each agent has a caller of its own: it posts a command that streams
lines for some seconds, follows it to its end, pauses, and posts the next one. `api` says how that is done with each of
the fleets. Every request is a connection of its own, so that the Service gives each to another pod.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import uvloop

from trial.calls import Call, Probe

SAMPLE, PROBES = 5, 5.0
"""Agents that are probed, and probes of each in a second."""
END = 120.0
"""Seconds for the ends of all commands when the trial stops."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What each caller does. Times are in seconds."""

    lines: int = 5
    pause: float = 4.0
    """Between two lines. A command takes 20 s: there are many in each chapter, and every fault meets some."""
    between: float = 20.0
    """At most, between two commands of an agent: two thirds of the agents are inside one at any moment."""


class Api(Protocol):
    """A fleet as its callers see it. Nothing is raised but by cancellation."""

    repeated: Counter[str]
    """Attempts that were repeated, by what went wrong: an error of the connection, or a temporary one of the API."""

    async def run(self, http: aiohttp.ClientSession, call: Call, pause: float) -> None:
        """Post the command and see it to its end."""

    async def answers(self, http: aiohttp.ClientSession, agent: str, key: str) -> bool:
        """Whether the agent answers."""


class Traffic:
    def __init__(self, api: Api, agents: Sequence[str], seed: int, pace: Pace = Pace()) -> None:
        self.calls: list[Call] = []
        self.probes: list[Probe] = []
        self._api = api
        self._agents = agents
        self._rng = random.Random(seed)
        self._pace = pace
        self._failure: BaseException | None = None
        self._stop: Callable[[], object] = lambda: None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="traffic")

    def start(self) -> None:
        self._thread.start()
        self._started.wait(30)

    def finish(self) -> None:
        """No more posts; waits for the ends of those that were posted."""
        self._stop()
        if self._thread.ident is not None:
            self._thread.join(END + 60)
        if self._failure is not None:
            raise self._failure

    def _main(self) -> None:
        try:
            uvloop.run(self._run())
        except BaseException as e:
            self._failure = e

    async def _run(self) -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: loop.is_closed() or loop.call_soon_threadsafe(stopping.set)
        self._started.set()
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            tasks = [asyncio.create_task(self._call_for_ever(http, agent, stopping)) for agent in self._agents]
            sample = self._rng.sample(self._agents, min(SAMPLE, len(self._agents)))
            tasks += [asyncio.create_task(self._probe_for_ever(http, agent, stopping)) for agent in sample]
            await stopping.wait()
            _, late = await asyncio.wait(tasks, timeout=END)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error

    async def _call_for_ever(self, http: aiohttp.ClientSession, agent: str, stopping: asyncio.Event) -> None:
        rng = random.Random(f"{self._rng.random()} {agent}")
        number = 0
        await _sleep(rng.uniform(0, self._pace.lines * self._pace.pause + self._pace.between), stopping)
        while not stopping.is_set():
            call = Call(f"{agent}.{number}", agent, self._pace.lines, time.time())
            self.calls.append(call)
            number += 1
            await self._api.run(http, call, self._pace.pause)
            await _sleep(rng.uniform(0, self._pace.between), stopping)

    async def _probe_for_ever(self, http: aiohttp.ClientSession, agent: str, stopping: asyncio.Event) -> None:
        asked: set[asyncio.Task[None]] = set()
        number = 0
        due = time.monotonic() + self._rng.uniform(0, 1 / PROBES)
        while not stopping.is_set():
            await _sleep(max(0.0, due - time.monotonic()), stopping)
            asked.add(task := asyncio.create_task(self._probe(http, agent, f"{agent}.probe.{number}")))
            task.add_done_callback(asked.discard)
            number += 1
            due += 1 / PROBES
        if asked:
            await asyncio.wait(asked)

    async def _probe(self, http: aiohttp.ClientSession, agent: str, key: str) -> None:
        posted = time.time()
        answered = await self._api.answers(http, agent, key)
        self.probes.append(Probe(agent, posted, time.time() if answered else 0.0))


async def _sleep(seconds: float, stopping: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        pass
