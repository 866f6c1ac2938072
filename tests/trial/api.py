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

import aiohttp

from trial.calls import LOST, OK, Call

CALL_TIMEOUT = 90.0
"""Seconds after which a caller gives up; what has said nothing until then is lost."""
DEADLINE, QUEUE = 80.0, 60.0
"""Seconds that a command of Fairlead has, and that it waits for an agent that is away."""
SILENCE = 30.0
"""Seconds without a line after which a caller takes its connection for dead: lines come every few seconds."""
AGAIN, AGAIN_LATER = 0.3, 10.0
"""Seconds before the first repetition, and at most: they double. Thousands of callers that all came again at once would
keep a fleet down that was only slow."""
TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5, sock_read=SILENCE)
FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


class FairleadApi:
    def __init__(self, url: str, token: str) -> None:
        self._url = f"{url}/v1/commands"
        self._headers = {"authorization": f"Bearer {token}", "accept": "application/x-ndjson"}
        self.repeated: Counter[str] = Counter()

    async def run(self, http: aiohttp.ClientSession, call: Call, pause: float) -> None:
        payload = {"key": call.key, "count": call.count, "pause": pause}
        await self._follow(http, call, "work", payload)

    async def answers(self, http: aiohttp.ClientSession, agent: str, key: str) -> bool:
        call = Call(key, agent, 0, time.time())
        await self._follow(http, call, "answer", {})
        return call.outcome == OK

    async def _follow(self, http: aiohttp.ClientSession, call: Call, method: str, payload: object) -> None:
        body = {
            "agent": call.agent, "method": method, "payload": payload, "deadline": DEADLINE,
            "on_offline": {"queue": QUEUE},
        }  # fmt: skip
        id, tries = "", 0
        while not call.outcome and time.time() < call.posted + CALL_TIMEOUT:
            try:
                if id:
                    url = f"{self._url}/{id}/results?from={call.lines}&follow=true"
                    request = http.get(url, headers=self._headers, timeout=TIMEOUT)
                else:
                    headers = {**self._headers, "idempotency-key": call.key}
                    request = http.post(self._url, json=body, headers=headers, timeout=TIMEOUT)
                async with request as answer:
                    async for told in _lines(answer):
                        tries = 0 if "offset" in told else tries
                        id = str(told.get("id", id)) if "offset" not in told else id
                        _take(call, told)
                        if isinstance(error := told.get("error"), dict):
                            self.repeated[str(error["code"])] += not call.outcome
            except FAILURES as e:
                self.repeated[type(e).__name__] += 1
            if not call.outcome:
                await _back_off(tries)
                tries += 1
        if not call.outcome:
            call.outcome = LOST


async def _back_off(tries: int) -> None:
    await asyncio.sleep(random.uniform(0.5, 1.5) * min(AGAIN * 2**tries, AGAIN_LATER))


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, object]]:
    """The answer's lines; a refusal as the one line that a stream has for it."""
    if answer.status != 200:
        problem = json.loads(await answer.read())
        yield {"error": {"code": problem["code"], "temporary": problem["temporary"]}}
        return
    async for line in answer.content:
        yield json.loads(line)


def _take(call: Call, told: dict[str, object]) -> None:
    now = time.time()
    if "offset" in told:
        call.repeated = call.repeated or told["offset"] != call.lines
        call.hear(now, str(told["text"]).rstrip("\n"))
    elif isinstance(end := told.get("end"), dict):
        call.end(now, str(end["error"]["code"]) if end["error"] else str(end["state"]))
    elif isinstance(error := told.get("error"), dict) and not error["temporary"]:
        call.end(now, str(error["code"]))


class PlainApi:
    def __init__(self, url: str) -> None:
        self._url = url
        self.repeated: Counter[str] = Counter()

    async def run(self, http: aiohttp.ClientSession, call: Call, pause: float) -> None:
        order = {"key": call.key, "count": call.count, "pause": pause}
        tries = 0
        while not call.outcome:
            try:
                async with http.post(f"{self._url}/agents/{call.agent}", json=order, timeout=TIMEOUT) as answer:
                    if answer.status != 200:
                        call.end(time.time(), f"HTTP {answer.status}")
                        return
                    async for line in answer.content:
                        told = json.loads(line)
                        if "end" in told:
                            call.end(time.time(), str(told["end"]))
                        else:
                            call.hear(time.time(), str(told["line"]))
                break
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as e:
                # Nothing was sent.
                self.repeated[type(e).__name__] += 1
                if time.time() > call.posted + CALL_TIMEOUT:
                    break
                await _back_off(tries)
                tries += 1
            except FAILURES:
                break
        if not call.outcome:
            call.outcome = LOST

    async def answers(self, http: aiohttp.ClientSession, agent: str, key: str) -> bool:
        call = Call(key, agent, 0, time.time())
        await self.run(http, call, 0.0)
        return call.outcome == OK
