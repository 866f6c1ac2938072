"""How a caller runs a command: with Fairlead's API, and with the plain server's. Used by `traffic`.

The caller of Fairlead does what docs/delivery.md asks for: it posts under an Idempotency-Key, repeats a post whose
outcome is unknown or whose error is temporary, and takes results up again where they broke off. The plain server has no
such key, so its caller repeats only what was certainly not accepted: a repetition of anything else could run twice.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from trial.calls import OK, Call

ACCEPTED_WITHIN = 90.0
"""Seconds after which a caller no longer tries to post a command."""
REPORT_SECONDS = 30.0
"""Seconds after the latest possible end of a command in which its caller must have the outcome: a few attempts."""
ASKED = 3
"""Times that a caller that gives up asks for the command's record."""
SILENCE = 30.0
"""Seconds without a line after which a caller takes its connection for dead: lines come every few seconds."""
AGAIN, AGAIN_LATER = 0.3, 10.0
"""Seconds before the first repetition, and at most: they double. Thousands of callers that all came again at once would
keep a fleet down that was only slow."""
TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5, sock_read=SILENCE)
UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Errors before anything is sent."""
FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError)
"""What an attempt may raise. The last two mean that the answer did not come from the API."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a command of Fairlead, in seconds: it has ended after their sum, whatever happens."""

    deadline: float = 80.0
    queue: float = 60.0
    """That it waits for an agent that is away."""


class FairleadApi:
    def __init__(self, url: str, token: str, limits: Limits = Limits()) -> None:
        self._url = f"{url}/v1/commands"
        self._headers = {"authorization": f"Bearer {token}", "accept": "application/x-ndjson"}
        self._limits = limits
        self.failures: Counter[str] = Counter()

    async def run(self, http: aiohttp.ClientSession, call: Call, pause: float) -> None:
        payload = {"key": call.key, "count": call.count, "pause": pause}
        await self._follow(http, call, "work", payload)

    async def answers(self, http: aiohttp.ClientSession, agent: str, key: str) -> bool:
        call = Call(key, agent, 0, time.time())
        await self._follow(http, call, "answer", {})
        return call.outcome == OK

    async def _follow(self, http: aiohttp.ClientSession, call: Call, method: str, payload: object) -> None:
        limits = self._limits
        body = {
            "agent": call.agent, "method": method, "payload": payload, "deadline": limits.deadline,
            "on_offline": {"queue": limits.queue},
        }  # fmt: skip
        clock = asyncio.get_running_loop().time
        tries, until = 0, clock() + ACCEPTED_WITHIN
        while not call.outcome and clock() < until:
            known = bool(call.id)
            try:
                async with asyncio.timeout_at(until) as limit, self._request(http, call, body) as answer:
                    call.sent = True
                    async for line in _lines(answer):
                        tries = 0 if "offset" in line else tries
                        if not call.id and "offset" not in line and line.get("id"):
                            call.id = str(line["id"])
                            until = clock() + limits.deadline + limits.queue + REPORT_SECONDS
                            limit.reschedule(until)
                        self._take(call, line)
            except FAILURES as e:
                self.failures[what := type(e).__name__] += 1
                call.fail(time.time(), what, sent=not isinstance(e, UNSENT))
            if not call.outcome:
                tries = tries if known == bool(call.id) else 0
                await _back_off(tries)
                tries += 1
        if not call.outcome:
            call.give_up(time.time())
            call.record = await self._record(http, call)

    def _request(self, http: aiohttp.ClientSession, call: Call, body: object) -> aiohttp.client._RequestContextManager:
        if call.id:
            url = f"{self._url}/{call.id}/results?from={call.lines}&follow=true"
            return http.get(url, headers=self._headers, timeout=TIMEOUT)
        headers = {**self._headers, "idempotency-key": call.key}
        return http.post(self._url, json=body, headers=headers, timeout=TIMEOUT)

    async def _record(self, http: aiohttp.ClientSession, call: Call) -> str:
        """What the API knows of a command whose caller gives up."""
        found = "the API never returned an id"
        for _ in range(ASKED if call.id else 0):
            try:
                headers = {**self._headers, "accept": "application/json"}
                async with http.get(f"{self._url}/{call.id}", headers=headers, timeout=TIMEOUT) as answer:
                    return (await answer.text())[:1_000]
            except FAILURES as e:
                found = f"not to be had: {type(e).__name__}"
                await _back_off(ASKED)
        return found

    def _take(self, call: Call, line: dict[str, object]) -> None:
        now = time.time()
        if "offset" in line:
            call.repeated = call.repeated or line["offset"] != call.lines
            call.receive_line(now, str(line["text"]).rstrip("\n"))
        elif isinstance(end := line.get("end"), dict):
            call.end(now, str(end["error"]["code"]) if end["error"] else str(end["state"]))
        elif isinstance(error := line.get("error"), dict):
            if error["temporary"]:
                self.failures[str(error["code"])] += 1
                call.fail(now, str(error["code"]))
            else:
                call.end(now, str(error["code"]))


async def _back_off(tries: int) -> None:
    await asyncio.sleep(random.uniform(0.5, 1.5) * min(AGAIN * 2 ** min(tries, 10), AGAIN_LATER))


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, object]]:
    """The answer's lines; a refusal as the one line that a stream has for it."""
    if answer.status != 200:
        problem = json.loads(await answer.read())
        yield {"error": {"code": problem["code"], "temporary": problem["temporary"]}}
        return
    async for line in answer.content:
        yield json.loads(line)


class PlainApi:
    def __init__(self, url: str) -> None:
        self._url = url
        self.failures: Counter[str] = Counter()

    async def run(self, http: aiohttp.ClientSession, call: Call, pause: float) -> None:
        order = {"key": call.key, "count": call.count, "pause": pause}
        tries = 0
        while not call.outcome and time.time() < call.posted + ACCEPTED_WITHIN:
            try:
                async with http.post(f"{self._url}/agents/{call.agent}", json=order, timeout=TIMEOUT) as answer:
                    call.sent = True
                    if answer.status != 200:
                        call.end(time.time(), f"HTTP {answer.status}")
                        return
                    async for line in answer.content:
                        event = json.loads(line)
                        if "end" in event:
                            call.end(time.time(), str(event["end"]))
                        else:
                            call.receive_line(time.time(), str(event["line"]))
                call.fail(time.time(), "a stream without an end")
                break
            except UNSENT as e:
                self.failures[type(e).__name__] += 1
                call.fail(time.time(), type(e).__name__, sent=False)
                await _back_off(tries)
                tries += 1
            except FAILURES as e:
                self.failures[type(e).__name__] += 1
                call.fail(time.time(), type(e).__name__)
                break
        if not call.outcome:
            call.give_up(time.time())

    async def answers(self, http: aiohttp.ClientSession, agent: str, key: str) -> bool:
        call = Call(key, agent, 0, time.time())
        await self.run(http, call, 0.0)
        return call.outcome == OK
