"""The platform API of one node, as the tests of telemetry use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import httpx2

from support.telemetry.node import Node

TIMEOUT = 60.0
"""Far more than anything takes: these tests measure no time, and must bear a machine that does much else."""


class Platform:
    """The API of one node, as a caller uses it."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def run(self, agent: str, method: str, payload: object = None, **headers: str) -> list[dict[str, Any]]:
        """Post a command and follow it to its end; all lines."""
        answer = await self.http.post(
            "/v1/commands", json={"agent": agent, "method": method, "payload": payload or {}},
            headers={"accept": "application/x-ndjson", **headers},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        return [line for raw in answer.text.splitlines() if (line := httpx2.Response(200, text=raw).json())]

    async def post(self, agent: str, method: str, payload: object = None, **more: object) -> str:
        """Post a command without following it; returns its id."""
        body = {"agent": agent, "method": method, "payload": payload or {}, **more}
        answer = await self.http.post("/v1/commands", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def get(self, path: str) -> dict[str, Any]:
        """What it answers; a node that is too busy to be asked by another is asked again."""
        async with asyncio.timeout(TIMEOUT):
            while (answer := await self.http.get(path)).status_code == 503:
                await asyncio.sleep(0.2)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def ranked(self, query: str = "") -> dict[str, Any]:
        """The ranking, once all nodes have answered in time."""
        async with asyncio.timeout(TIMEOUT):
            while (found := await self.get(f"/v1/links{query}"))["missing"]:
                await asyncio.sleep(0.2)
        return found

    async def online(self, agent: str) -> None:
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self.http.get(f"/v1/agents/{agent}")
                if answer.status_code == 200 and answer.json()["state"] == "online":
                    return
                await asyncio.sleep(0.05)


PlatformOf: TypeAlias = Callable[[Node], Platform]
