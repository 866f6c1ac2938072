"""Commands on agents at a steady rate, whatever becomes of them: the longest time that one cannot be reached shows.

Used by the tests of agents that move, by `bench.moving.moves` and `bench.moving.rebalance`. Each command is posted at
its time, not when the one before has ended, so a pause of the agent is seen by all commands that fall into it. As a
platform does, it posts again under the same key what a node refused because Redis was slow (503 `bus_unavailable`): a
busy machine is no pause of an agent.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from types import TracebackType

import httpx2

from support.plain_http import plain_client

NDJSON = "application/x-ndjson"
IN_FLIGHT = 200
"""Commands at once. Beyond that they are late, and their time counts from when they were due."""


@dataclass(frozen=True)
class Outcome:
    """Of one command. Times by the monotonic clock, in seconds."""

    id: str
    posted: float
    ended: float
    state: str
    """As the platform sees it; `refused` if the post was."""
    detail: str = ""

    @property
    def took(self) -> float:
        return self.ended - self.posted


class SteadyCommands:
    """`async with` posts commands to `api` until its end, and then waits for the last of them."""

    def __init__(self, api: str, token: str, agents: Sequence[str], method: str, rate: float) -> None:
        """To `agents` in turn; `rate`: commands a second, all together."""
        self.outcomes: list[Outcome] = []
        self._orders = cycle([{"agent": agent, "method": method, "deadline": 60} for agent in agents])
        self._rate = rate
        self._turn = asyncio.Semaphore(IN_FLIGHT)
        self._http = plain_client(
            base_url=api, headers={"authorization": f"Bearer {token}", "accept": NDJSON}, timeout=90,
            limits=httpx2.Limits(max_connections=2_000, max_keepalive_connections=200),
        )  # fmt: skip
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SteadyCommands:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._http.aclose()

    async def _run(self) -> None:
        posts: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        try:
            while True:
                posts.add(task := asyncio.create_task(self._post(due)))
                task.add_done_callback(posts.discard)
                due += 1 / self._rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        finally:
            if posts:
                await asyncio.wait(posts)

    async def _post(self, due: float) -> None:
        key = secrets.token_hex(16)
        async with self._turn:
            order = next(self._orders)
            while (outcome := await self._outcome(due, key, order)) is None:
                await asyncio.sleep(0.1)
        self.outcomes.append(outcome)

    async def _outcome(self, due: float, key: str, order: Mapping[str, object]) -> Outcome | None:
        """None if it is to be posted again."""
        try:
            answer = await self._http.post("/v1/commands", json=order, headers={"idempotency-key": key})
            lines = [json.loads(line) for line in answer.text.splitlines() if line]
        except (httpx2.HTTPError, ValueError) as e:
            return Outcome("", due, time.monotonic(), "refused", repr(e))
        if answer.status_code == 503 and lines[0].get("code") in ("bus_unavailable", "outcome_unknown"):
            return None
        end = next((line["end"] for line in lines if "end" in line), None)
        if answer.status_code >= 300 or end is None:
            return Outcome("", due, time.monotonic(), "refused", answer.text[:500])
        id = next((str(line["id"]) for line in lines if "id" in line), "")
        return Outcome(id, due, time.monotonic(), str(end["state"]), str(end.get("error") or ""))
