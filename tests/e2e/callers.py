"""Callers that run commands on the workers all the time, through the platform's Service, and follow each to its end.

Started by the story, in a thread with an event loop of its own, so that the story may wait for kubectl meanwhile. Each
caller does what docs/delivery.md asks for: it posts under an Idempotency-Key, repeats a post whose outcome is unknown
or whose error is temporary, and takes results up again where they broke off. Every request is a connection of its own,
as the Service gives each to another pod. What came of it all is the ledger's to judge.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2

from e2e.workers import name
from support.ledger import Entry, Judgement, Ledger, Way
from support.plain_http import plain_client

DEADLINE = 300.0
"""Seconds that a command has: longer than any fault of the story, on a machine that is slow and busy."""
QUEUE = 240.0
"""Seconds that a command waits for an agent that is away."""
TIMEOUT = 330.0
"""Seconds after which a caller gives up; what says nothing until then is lost."""
PAUSE = 0.3


class Callers:
    """Posts from `start` to `finish`, and sees every command to its end."""

    def __init__(self, url: str, token: str, workers: int, rate: float, executions: Path) -> None:
        self.ledger = Ledger()
        self._url = f"{url}/v1/commands"
        self._headers = {"authorization": f"Bearer {token}"}
        self._workers = workers
        self._rate = rate
        self._executions = executions
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._abandon: Callable[[], object] | None = None
        self._ask: Callable[[str, int], object] | None = None
        self._thread = threading.Thread(target=self._main, name="callers")

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """No more posts; waits for the ends of those that were posted."""
        self._stop.set()
        self._thread.join(TIMEOUT + 30)
        if self._thread.is_alive():
            raise AssertionError("the callers do not end")
        if self._failure is not None:
            raise self._failure

    def ask(self, agents: Sequence[str], count: int) -> list[Entry]:
        """One more command of so many lines for each of the agents; they run when they are given back."""
        assert self._ask is not None
        before = set(map(id, self.ledger.entries))
        for agent in agents:
            self._ask(agent, count)
        deadline = time.monotonic() + TIMEOUT
        while True:
            asked = [one for one in list(self.ledger.entries) if id(one) not in before and one.count == count]
            if len(asked) == len(agents) and all(one.pieces for one in asked):
                return asked
            assert time.monotonic() < deadline, f"not all of {asked} run"
            time.sleep(0.1)

    def abandon(self) -> None:
        """Leave everything as it is: the story has failed elsewhere."""
        self._stop.set()
        if self._abandon is not None:
            self._abandon()
        self._thread.join(30)

    def judge(self) -> Judgement:
        for key in self._executions.read_text().split("\n")[:-1]:
            self.ledger.executed(key)
        return self.ledger.judge()

    def ended(self) -> int:
        return sum(entry.over for entry in list(self.ledger.entries))

    def _main(self) -> None:
        try:
            asyncio.run(self._post())
        except BaseException as e:
            self._failure = e

    async def _post(self) -> None:
        loop, all_of_it = asyncio.get_running_loop(), asyncio.current_task()
        assert all_of_it is not None
        self._abandon = lambda: loop.is_closed() or loop.call_soon_threadsafe(all_of_it.cancel)
        rng = random.Random(1)
        limits = httpx2.Limits(max_keepalive_connections=0)
        timeout = httpx2.Timeout(15, connect=3)
        async with (
            plain_client(headers=self._headers, timeout=timeout, limits=limits) as http,
            asyncio.TaskGroup() as group,
        ):

            def ask(agent: str, count: int) -> None:
                group.create_task(self._follow(http, self.ledger.open(agent, count, Way.WORK, 0)))

            self._ask = lambda agent, count: loop.call_soon_threadsafe(ask, agent, count)
            while not self._stop.is_set():
                ask(name(rng.randrange(self._workers)), rng.randrange(1, 20))
                await asyncio.sleep(rng.expovariate(self._rate))

    async def _follow(self, http: httpx2.AsyncClient, entry: Entry) -> None:
        give_up = time.monotonic() + TIMEOUT
        entry.updates.append(time.monotonic())
        while not entry.over and time.monotonic() < give_up:
            try:
                await self._read(http, entry)
            except httpx2.RequestError:
                pass
            if not entry.over:
                entry.attached += 1
                await asyncio.sleep(random.uniform(0.5, 1.5) * PAUSE)

    async def _read(self, http: httpx2.AsyncClient, entry: Entry) -> None:
        """Post the command, or take its results up again, until they end or break off."""
        if entry.id:
            stream = http.stream("GET", f"{self._url}/{entry.id}/results?from={entry.offset}&follow=true")
        else:
            body = {
                "agent": entry.agent, "method": "work", "deadline": DEADLINE, "on_offline": {"queue": QUEUE},
                "payload": {"key": entry.key, "count": entry.count, "pause": 0.2},
            }  # fmt: skip
            headers = {"idempotency-key": entry.key, "accept": "application/x-ndjson"}
            stream = http.stream("POST", self._url, json=body, headers=headers)
        async with stream as answer:
            if answer.status_code != 200:
                problem = json.loads(await answer.aread())
                if not problem["temporary"]:
                    entry.error = problem["code"]
                return
            async for raw in answer.aiter_lines():
                self._take(entry, json.loads(raw))

    def _take(self, entry: Entry, line: dict[str, object]) -> None:
        entry.updates.append(time.monotonic())
        if "offset" in line:
            if line["offset"] != entry.offset:
                entry.wrong = f"offset {line['offset']} in place of {entry.offset}"
            entry.offset += 1
            entry.pieces.append(str(line["text"]))
        elif isinstance(end := line.get("end"), dict):
            entry.ends.append(str(end["state"]))
            if end["error"]:
                entry.error = str(end["error"]["code"])
        elif isinstance(error := line.get("error"), dict):
            if not error["temporary"]:
                entry.error = str(error["code"])
        elif "id" in line:
            entry.id = str(line["id"])
            entry.ids.add(entry.id)
