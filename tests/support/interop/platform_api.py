"""The platform API of one node, as the tests of interoperability use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import httpx2

from support.gateway_process import ServeProcess
from support.interop.foreign_agent import TIMEOUT


class InteropApi:
    """The platform API of one node, as a caller uses it."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def start(self, agent: str, method: str, payload: object = None, **more: object) -> str:
        """Post a command that must be accepted; returns its id."""
        body = {"agent": agent, "method": method, "payload": payload or {}, **more}
        answer = await self.http.post("/v1/commands", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def results(self, command: str) -> tuple[str, dict[str, Any]]:
        """All the text, and the end."""
        answer = await self.http.get(f"/v1/commands/{command}/results?follow=true")
        assert answer.status_code == 200, answer.text
        lines = [json.loads(raw) for raw in answer.text.splitlines()]
        return "".join(line.get("text", "") for line in lines), dict(lines[-1]["end"])

    async def recorded(self, command: str, count: int) -> None:
        """Wait until so many results are recorded, reading none."""
        async with asyncio.timeout(TIMEOUT):
            while (await self.http.get(f"/v1/commands/{command}")).json()["results"] < count:
                await asyncio.sleep(0.05)

    async def window_end(self, command: str) -> tuple[int, dict[str, Any]]:
        """Wait until a command is over whose results are retained as a window; returns how many there are, and the end.
        Reads none of them: that would make room."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                found = (await self.http.get(f"/v1/commands/{command}")).json()
                if (end := found["targets"][0]["end"]) is not None:
                    return int(found["results"]), dict(end)
                await asyncio.sleep(0.05)

    async def seen(self, command: str, count: int) -> None:
        """Wait until so many results are recorded."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self.http.get(f"/v1/commands/{command}/results?follow=false")
                if sum("n" in json.loads(raw) for raw in answer.text.splitlines()) >= count:
                    return
                await asyncio.sleep(0.05)


ApiOf: TypeAlias = Callable[[ServeProcess], InteropApi]
