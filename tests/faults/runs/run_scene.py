"""What one fault of runs gets: the fleet, the servers of its Redis, the agents, and the run in whose middle it comes.

A scene asks as a caller does: a node that cannot answer now is asked again, or another one is. From the run's beginning
on it looks at the run all the time: its counts add up at every moment.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2

from faults.fault_fleet import FaultFleet, NodeProcess
from faults.runs.run_crowd import KEY, Crowd
from support.waiting import until

PATIENCE = 120.0
"""Seconds: far longer than anything here takes."""
LOOK = 0.2
OPEN = frozenset({"waiting", "started", "queued"})


@dataclass(frozen=True)
class Lengths:
    """How long faults last, in seconds, and how wide a run is."""

    frozen: float
    """A node is stopped: for longer than the 15 s after which the others take it for dead."""
    trouble: float
    """Redis is frozen, full or behind: for longer than the 5 s that a node owns a run."""
    concurrency: int
    first: int
    """So many targets have ended when the fault comes."""


@dataclass
class RunScene:
    fleet: FaultFleet
    servers: Any
    crowd: Crowd
    lengths: Lengths
    run: str = ""
    others: list[str] = field(default_factory=list)
    """The agents among the targets that do not belong to the crowd."""
    ends: frozenset[str] = frozenset({"ok"})
    """How targets may end because of this fault."""
    codes: frozenset[str] = frozenset()
    """The codes with which they may fail."""
    state: str = "done"
    """How the run ends."""
    longest_pause: float = 0.0
    """Seconds in which no target ended, at most."""
    _watch: asyncio.Task[None] | None = None

    # -- as a caller -------------------------------------------------------------------------------

    async def begin(self, agents: list[str] | None = None, **more: object) -> None:
        """Begin the run at the first node. `agents` are those of the crowd and others, None for the crowd."""
        self.others = [agent for agent in agents or () if agent not in set(self.crowd.names)]
        chosen = {"agents": agents or self.crowd.names}
        body = {
            "method": "step", "payload": {"key": KEY}, "concurrency": self.lengths.concurrency, "deadline": PATIENCE,
            **chosen, **more,
        }  # fmt: skip
        answer = await self._post(f"http://127.0.0.1:{self.fleet.nodes[0].api}/v1/runs", body)
        assert answer.status_code == 202, answer.text
        self.run = str(answer.json()["id"])
        self._watch = asyncio.create_task(self._keep_looking())

    async def _post(self, path: str, body: dict[str, object]) -> httpx2.Response:
        """Post once, however often that is tried: the connection may have been idle for so long that the node closes it
        at this moment, and names of 10,000 agents take a while."""
        end, key = time.monotonic() + PATIENCE, {"idempotency-key": f"{self.fleet.rng.getrandbits(64):x}"}
        while True:
            try:
                return await self.fleet.http.post(path, json=body, headers=key, timeout=PATIENCE)
            except httpx2.RemoteProtocolError:
                assert time.monotonic() < end, f"no answer to a post to {path}"

    @property
    def running(self) -> list[NodeProcess]:
        """The nodes that can answer."""
        return [node for node in self.fleet.nodes if node.running and node is not self.fleet.avoided]

    async def ask(self, method: str, path: str) -> httpx2.Response:
        """Ask about the run, at any node, until one answers."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return await self._ask_once(method, path)
            except (httpx2.RequestError, LookupError):
                assert time.monotonic() < end, f"no node answers {method} {path}"
                await asyncio.sleep(LOOK)

    async def _ask_once(self, method: str, path: str) -> httpx2.Response:
        """Raises LookupError for an error that is temporary, and while no node runs."""
        if not self.running:
            raise LookupError("no node runs")
        api = self.fleet.rng.choice(self.running).api
        answer = await self.fleet.http.request(method, f"http://127.0.0.1:{api}/v1/runs/{self.run}{path}")
        if answer.status_code >= 500:
            raise LookupError(answer.text)
        return answer

    async def read(self) -> dict[str, Any]:
        answer = await self.ask("GET", "")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def results(self, *, output: bool = False) -> list[dict[str, Any]]:
        """How the targets have ended so far."""
        answer = await self.ask("GET", f"/results?follow=false&output={str(output).lower()}")
        lines = [json.loads(raw) for raw in answer.text.splitlines()]
        assert all("agent" in line or "end" in line for line in lines), lines[-1]
        return [line for line in lines if "agent" in line]

    async def counts(self) -> dict[str, int]:
        return dict((await self.read())["counts"])

    async def wish(self, path: str) -> None:
        """Ask for a pause or a resume."""
        answer = await self.ask("POST", path)
        assert answer.status_code == 202, answer.text

    # -- the middle of the run ---------------------------------------------------------------------

    async def begin_and_reach_the_middle(self, **more: Any) -> None:
        """Begin the run, and wait until its first targets have ended. Those under way then are held, so that all
        others wait."""
        width = self.lengths.concurrency
        if self.crowd.output is not None:  # agents that can be let go one by one
            await self.crowd.hold()
            await self.begin(**more)
            await self.crowd.go_on(self.lengths.first)
        else:
            await self.begin(**more)

        async def first_ended() -> bool:
            return (await self.counts()).get("ok", 0) >= self.lengths.first

        async def held() -> bool:
            return (await self.counts()).get("started", 0) == width

        await until(first_ended, PATIENCE)
        if self.crowd.output is None:
            await self.crowd.hold()
        await until(held, PATIENCE)
        counts = await self.counts()
        assert counts["waiting"], f"the run was over before the fault came: {counts}"

    async def owner(self) -> NodeProcess:
        name = (await self.read())["node"]
        return next(node for node in self.fleet.nodes if node.name == name)

    async def other(self) -> NodeProcess:
        owner = await self.owner()
        return next(node for node in self.fleet.nodes if node is not owner)

    async def is_driven_elsewhere(self, than: NodeProcess) -> None:
        async def moved() -> bool:
            return bool((await self.read())["node"] != than.name)

        await until(moved, PATIENCE)

    async def has_ended_at(self, node: NodeProcess) -> None:
        """Wait until the node that drove the run at its end says so; it is to be this one."""

        async def ended() -> list[str]:
            counts = [(one, await self.fleet.metric(one, "fairlead_runs_ended_total")) for one in self.running]
            return [one.name for one, count in counts if count]

        await until(ended)
        assert await ended() == [node.name]

    async def ended(self) -> dict[str, Any]:
        """Wait for the end of the run."""

        async def over() -> bool:
            return bool((await self.read())["ended"])

        await until(over, 2 * PATIENCE)
        await self.stop_looking()
        return await self.read()

    # -- the sums ----------------------------------------------------------------------------------

    async def stop_looking(self) -> None:
        """Raises what was wrong with the sums."""
        if self._watch is not None:
            self._watch.cancel()
            (failure,) = await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
            if isinstance(failure, Exception):
                raise failure

    async def _keep_looking(self) -> None:
        before, since = -1, time.monotonic()
        while True:
            try:
                answer = await self._ask_once("GET", "")
            except (httpx2.RequestError, LookupError):
                pass
            else:
                assert answer.status_code == 200, answer.text
                found = answer.json()
                assert sum(found["counts"].values()) == found["targets"], f"the sums do not add up: {found}"
                over, now = found["targets"] - sum(found["counts"].get(state, 0) for state in OPEN), time.monotonic()
                self.longest_pause = max(self.longest_pause, now - since)
                if over != before:
                    before, since = over, now
            await asyncio.sleep(LOOK)


def sums(lines: list[dict[str, Any]]) -> Counter[str]:
    """The states of the targets in a stream of results."""
    return Counter(str(line["state"]) for line in lines)
