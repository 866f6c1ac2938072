"""Callers: commands to random agents through random nodes, each followed to its end despite all faults.

A caller does what docs/delivery.md tells callers to do: it posts under an Idempotency-Key, repeats the post when its
outcome is unknown or the error is temporary, and takes results up again where they broke off, at another node. Some
post twice at once and once more at the end, some send input, some cancel: see `Way`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any

import httpx2

from faults.fault_fleet import FaultFleet, NodeProcess
from support.ledger import Entry, Way, line

DEADLINE = 120.0
"""Seconds that a command has: far longer than any fault here lasts, on a busy machine too. None may run into it."""
TIMEOUT = 180.0
"""Seconds after which a caller gives up: a command that says nothing until then is lost."""
PAUSE = 0.2
TWINS = 0.2
"""Share of the callers that post twice."""
SHARES = {Way.WORK: 70, Way.ECHO: 12, Way.CANCEL: 8, Way.SAFE: 8, Way.BULK: 2}
ENDLESS = 1_500
"""Lines of a command that is going to be cancelled: it would take longer than its deadline."""


class FaultTraffic:
    """`async with FaultTraffic(fleet, rate=20):` posts for as long as the block lasts; then `settle`."""

    def __init__(
        self, fleet: FaultFleet, rate: float, count: int = 12, pause: float = 0.1, most: float = float("inf")
    ) -> None:
        """`most` commands are open at once, and the closer it is, the longer callers wait before they try again: during
        a long outage they would otherwise take this process all its time."""
        self._most = most
        self._fleet = fleet
        self._rate = rate
        self._count = count
        self._pause = pause
        self._poster: asyncio.Task[None] | None = None
        self._callers: set[asyncio.Task[None]] = set()
        self._open = 0
        """Commands that their callers follow now."""

    async def __aenter__(self) -> FaultTraffic:
        self._poster = asyncio.create_task(self._post_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._poster is not None
        self._poster.cancel()
        await asyncio.gather(self._poster, return_exceptions=True)

    async def settle(self) -> None:
        """Wait until every caller has its end or has given up. Raises what a caller has failed with."""
        done: set[asyncio.Task[None]] = set()
        if self._callers:
            done, _ = await asyncio.wait(self._callers, timeout=TIMEOUT + 10)
        for caller in self._callers:
            caller.cancel()
        for caller in done:
            caller.result()

    def call(self, agent: str, count: int, pause: float, way: Way = Way.WORK) -> Entry:
        """One command, followed in the background."""
        if way is Way.CANCEL:
            count = ENDLESS
        if way is Way.BULK:
            count, pause = 256, 0.0
        entry = self._fleet.ledger.open(agent, count, way, 4_096 if way is Way.BULK else 0)
        self._start(self._follow(entry, pause))
        return entry

    def _start(self, caller: Coroutine[Any, Any, None]) -> None:
        self._callers.add(asyncio.create_task(caller))

    async def _post_forever(self) -> None:
        rng = self._fleet.rng
        ways, weights = list(SHARES), list(SHARES.values())
        while True:
            while self._open >= self._most:
                await self._wait_before_retry()
            way = rng.choices(ways, weights)[0]
            self.call(rng.choice(self._fleet.names), rng.randrange(1, 2 * self._count), self._pause, way)
            await asyncio.sleep(rng.expovariate(self._rate))

    async def _follow(self, entry: Entry, pause: float) -> None:
        self._open += 1
        try:
            await self._follow_to_its_end(entry, pause)
        finally:
            self._open -= 1

    async def _follow_to_its_end(self, entry: Entry, pause: float) -> None:
        give_up = time.monotonic() + TIMEOUT
        entry.updates.append(time.monotonic())
        twin = self._fleet.rng.random() < TWINS
        helpers = []
        if twin:
            helpers.append(asyncio.create_task(self._repeat(entry, pause, give_up)))
        if entry.way is Way.ECHO:
            helpers.append(asyncio.create_task(self._feed(entry, pause, give_up)))
        if entry.way is Way.CANCEL:
            helpers.append(asyncio.create_task(self._cancel(entry, give_up)))
        try:
            while not entry.over and time.monotonic() < give_up:
                node = await self._anywhere()
                entry.via = node.name
                try:
                    await self._read(entry, node.api, pause)
                except httpx2.RequestError:
                    pass
                if not entry.over:
                    entry.attached += 1
                    await self._wait_before_retry()
            if twin and entry.ends:
                await self._repeat(entry, pause, give_up)
        finally:
            # What fails in a helper is a defect of the harness and must not be taken for silence.
            for helper in helpers:
                if not helper.done():
                    helper.cancel()
            failures = await asyncio.gather(*helpers, return_exceptions=True)
        for failure in failures:
            if isinstance(failure, Exception):
                raise failure

    async def _anywhere(self) -> NodeProcess:
        while not any(node.running for node in self._fleet.nodes):
            await self._wait_before_retry()
        return self._fleet.a_node()

    async def _wait_before_retry(self) -> None:
        many = max(1.0, 10 * self._open / self._most)
        await asyncio.sleep(self._fleet.rng.uniform(0.5, 1.5) * PAUSE * many)

    def _request(self, entry: Entry, pause: float) -> tuple[dict[str, object], dict[str, str]]:
        """Body and headers of the post: the same for each repetition."""
        payload: dict[str, object] = {"key": entry.key}
        if entry.way is not Way.ECHO:
            payload |= {"count": entry.count, "width": entry.width, "pause": pause}
        body: dict[str, object] = {
            "agent": entry.agent, "method": "echo" if entry.way is Way.ECHO else "work", "deadline": DEADLINE,
            "payload": payload, "retry": "safe" if entry.way is Way.SAFE else "never",
        }  # fmt: skip
        return body, {"idempotency-key": entry.key}

    async def _read(self, entry: Entry, api: int, pause: float) -> None:
        """Post the command, or take its results up again, until they end or break off."""
        http, base = self._fleet.http, f"http://127.0.0.1:{api}/v1/commands"
        if entry.id:
            stream = http.stream("GET", f"{base}/{entry.id}/results?from={entry.offset}&follow=true")
        else:
            body, headers = self._request(entry, pause)
            stream = http.stream("POST", base, json=body, headers=headers | {"accept": "application/x-ndjson"})
        async with stream as answer:
            if answer.status_code != 200:
                problem = json.loads(await answer.aread())
                if not problem["temporary"] or answer.status_code == 409:
                    entry.error = problem["code"]
                    entry.updates.append(time.monotonic())
                return
            async for raw in answer.aiter_lines():
                self._take(entry, json.loads(raw))

    def _take(self, entry: Entry, line: dict[str, object]) -> None:
        if "offset" in line:
            entry.updates.append(time.monotonic())
            entry.output_times.append(entry.updates[-1])
            offset = line["offset"]
            assert isinstance(offset, int)
            void = line["kind"] == "retry" and offset > entry.offset  # dropped before this reader had read it
            if offset != entry.offset and not void:
                entry.wrong = f"offset {offset} in place of {entry.offset}"
            entry.offset = offset + 1
            if line["kind"] == "retry":
                entry.pieces.clear()
                if entry.way is not Way.SAFE:
                    entry.wrong = "run again, though it was not safe"
            else:
                entry.pieces.append(str(line["text"]))
        elif isinstance(end := line.get("end"), dict):
            entry.updates.append(time.monotonic())
            entry.ends.append(str(end["state"]))
            if end["error"]:
                entry.error = str(end["error"]["code"])
        elif isinstance(error := line.get("error"), dict):
            if not error["temporary"]:
                entry.error = str(error["code"])
                entry.updates.append(time.monotonic())
        elif "id" in line:
            entry.id = str(line["id"])
            entry.ids.add(entry.id)

    async def _repeat(self, entry: Entry, pause: float, give_up: float) -> None:
        """Post it under its key once more: at once, when it is a race, or after its end."""
        body, headers = self._request(entry, pause)
        while time.monotonic() < give_up:
            node = await self._anywhere()
            try:
                url = f"http://127.0.0.1:{node.api}/v1/commands"
                answer = await self._fleet.http.post(url, json=body, headers=headers)
            except httpx2.RequestError:
                pass
            else:
                posted = answer.json()
                if answer.status_code == 202:
                    entry.ids.add(str(posted["id"]))
                    return
                if not posted["temporary"] or answer.status_code == 409:
                    if posted["code"] == "idempotency_conflict":
                        entry.wrong = "the same body was called another"
                    return
            await self._wait_before_retry()

    async def _feed(self, entry: Entry, pause: float, give_up: float) -> None:
        """Send each line as input, and the end of it; each chunk again until a node says that it is taken, and those
        from the expected one on if Redis has lost some."""
        n = 0
        while n <= entry.count:
            data = line(entry.key, n, entry.width).encode() if n < entry.count else b""
            path = f"input?n={n}" if data else f"input?n={n}&end=true"
            answer = await self._ask(entry, "POST", path, give_up, data)
            if answer is None:
                return
            if answer.is_success:
                n += 1
            elif (expected := answer.json().get("expected", n)) < n:
                n = expected
            else:
                return
            await asyncio.sleep(pause)

    async def _cancel(self, entry: Entry, give_up: float) -> None:
        while not entry.pieces:
            await asyncio.sleep(PAUSE)
        entry.cancel_sent = time.monotonic()
        answer = await self._ask(entry, "DELETE", "", give_up)
        if answer is not None and answer.is_success:
            entry.cancelled = not entry.over

    async def _ask(
        self, entry: Entry, method: str, path: str, give_up: float, data: bytes = b""
    ) -> httpx2.Response | None:
        """Ask until a node has done it or refuses it for good; None when the command is over."""
        while not entry.over and time.monotonic() < give_up:
            if entry.id:
                node = await self._anywhere()
                url = f"http://127.0.0.1:{node.api}/v1/commands/{entry.id}/{path}".rstrip("/")
                try:
                    answer = await self._fleet.http.request(method, url, content=data)
                except httpx2.RequestError:
                    pass
                else:
                    if answer.is_success or not answer.json()["temporary"]:
                        return answer
            await self._wait_before_retry()
        return None
