"""The platform API of one gateway, as a caller uses it."""

from __future__ import annotations

import json
from typing import Any, Protocol

import httpx2

from support.gateway.process import GatewayProcess
from support.plain_http import plain_client

PLATFORM_TOKEN = "development-platform-token"


PLATFORM = {"authorization": f"Bearer {PLATFORM_TOKEN}"}


FITTING: dict[str, dict[str, object]] = {
    "exec": {"argv": ["true"]},
    "file.get": {"path": "/etc/hosts"},
    "file.put": {"path": "/tmp/new"},
    "script": {"digest": "0" * 64, "size": 1},
}
"""A payload for each built-in method that does not run without arguments."""


def fitting(method: str, content: str = "") -> dict[str, object]:
    """A payload that fits the method, and the content that goes with it."""
    return {**FITTING[method], **({"digest": content} if content else {})}


class GatewayApi:
    """The platform API of one gateway, as a caller uses it."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self.http = plain_client(base_url=gateway.api, headers=PLATFORM, timeout=60)

    async def post(self, body: dict[str, Any], **headers: str) -> httpx2.Response:
        """Post a command. The one that names a built-in method and has no payload gets one that fits."""
        if body.get("method") in FITTING:
            body = {"payload": fitting(body["method"], body.get("content", "")), **body}
        return await self.http.post("/v1/commands", json=body, headers=headers)

    async def start(self, agent: str, method: str = "work", **more: object) -> str:
        """Post a command that must be accepted; returns its id."""
        answer = await self.post({"agent": agent, "method": method, **more})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def get(self, command: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/commands/{command}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def lines(self, command: str, start: int = 0, follow: bool = True) -> list[dict[str, Any]]:
        """The whole stream of results."""
        query = f"from={start}&follow={'true' if follow else 'false'}"
        answer = await self.http.get(f"/v1/commands/{command}/results?{query}")
        assert answer.status_code == 200, answer.text
        return [line for raw in answer.text.splitlines() if (line := json.loads(raw))]

    async def end(self, command: str) -> dict[str, Any]:
        """Wait for the end of a command."""
        last = (await self.lines(command))[-1]
        return dict(last["end"])

    async def output(self, command: str) -> str:
        return "".join(line["text"] for line in await self.lines(command) if "text" in line)

    async def agent(self, agent: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/agents/{agent}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


class MakeGatewayApi(Protocol):
    def __call__(self, gateway: GatewayProcess) -> GatewayApi: ...
