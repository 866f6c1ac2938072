"""Callers: commands to random agents through random nodes, each followed to its end whatever breaks on the way.

A caller does what docs/delivery.md tells callers to do: it posts under an Idempotency-Key, repeats the post when its
outcome is unknown or the error is temporary, and takes results up again where they broke off, at another node.
"""

from __future__ import annotations

import asyncio
import json
import time

import httpx2
from ledger import Entry
from world import World

DEADLINE = 45.0
"""Seconds that a command has: longer than any fault here lasts."""
PATIENCE = 100.0
"""Seconds after which a caller gives up: a command that says nothing until then is lost."""
PAUSE = 0.2


class Traffic:
    """`async with Traffic(world, rate=20):` posts for as long as the block lasts; then `settle`."""

    def __init__(self, world: World, rate: float, count: int = 12, pause: float = 0.1) -> None:
        self._world = world
        self._rate = rate
        self._count = count
        self._pause = pause
        self._poster: asyncio.Task[None] | None = None
        self._callers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Traffic:
        self._poster = asyncio.create_task(self._post_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._poster is not None
        self._poster.cancel()
        await asyncio.gather(self._poster, return_exceptions=True)

    async def settle(self) -> None:
        """Wait until every caller has its end or has given up."""
        if self._callers:
            await asyncio.wait(self._callers, timeout=PATIENCE + 10)
        for caller in self._callers:
            caller.cancel()

    def call(self, agent: str, count: int, pause: float) -> Entry:
        """One command, followed in the background."""
        entry = self._world.ledger.open(f"key-{len(self._world.ledger.entries)}", agent, count)
        task = asyncio.create_task(self._follow(entry, pause))
        self._callers.add(task)
        task.add_done_callback(self._callers.discard)
        return entry

    async def _post_forever(self) -> None:
        rng = self._world.rng
        while True:
            self.call(rng.choice(self._world.names), rng.randrange(1, 2 * self._count), self._pause)
            await asyncio.sleep(rng.expovariate(self._rate))

    async def _follow(self, entry: Entry, pause: float) -> None:
        give_up = time.monotonic() + PATIENCE
        entry.heard(time.monotonic())
        while not entry.ends and not entry.error and time.monotonic() < give_up:
            node = self._world.a_node() if any(n.running for n in self._world.nodes) else None
            if node is None:
                await asyncio.sleep(PAUSE)
                continue
            try:
                await self._read(entry, node.api, pause)
            except httpx2.RequestError:
                pass
            if not entry.ends and not entry.error:
                entry.attached += 1
                await asyncio.sleep(self._world.rng.uniform(0.5, 1.5) * PAUSE)

    async def _read(self, entry: Entry, api: int, pause: float) -> None:
        """Post the command, or take its results up again, until they end or break off."""
        http, base = self._world.http, f"http://127.0.0.1:{api}/v1/commands"
        if entry.id:
            stream = http.stream("GET", f"{base}/{entry.id}/results?from={entry.offset}&follow=true")
        else:
            body = {
                "agent": entry.agent, "method": "work", "deadline": DEADLINE,
                "payload": {"key": entry.key, "count": entry.count, "pause": pause},
            }  # fmt: skip
            headers = {"idempotency-key": entry.key, "accept": "application/x-ndjson"}
            stream = http.stream("POST", base, json=body, headers=headers)
        async with stream as answer:
            if answer.status_code != 200:
                problem = json.loads(await answer.aread())
                if not problem["temporary"] or answer.status_code == 409:
                    entry.error = problem["code"]
                return
            async for raw in answer.aiter_lines():
                self._take(entry, json.loads(raw))

    def _take(self, entry: Entry, line: dict[str, object]) -> None:
        entry.heard(time.monotonic())
        if "offset" in line:
            assert line["offset"] == entry.offset, f"offset {line['offset']} in place of {entry.offset}: {entry}"
            entry.offset += 1
            entry.lines += str(line["text"]).splitlines()
        elif isinstance(end := line.get("end"), dict):
            entry.ends.append(str(end["state"]))
            if end["error"]:
                entry.error = str(end["error"]["code"])
        elif isinstance(error := line.get("error"), dict):
            if not error["temporary"]:
                entry.error = str(error["code"])
        elif "id" in line:
            entry.id = str(line["id"])
