"""Nodes whose link ports ask for client certificates, and agents that present what a test says."""

from __future__ import annotations

import secrets
import ssl
from pathlib import Path

import httpx2
import websockets

from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hello

from support.carrier.authority import Authority
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import AGENT_TOKEN, ScriptedAgent

Files = tuple[Path, Path]


class CertifiedFleet:
    def __init__(self, authority: Authority, *nodes: GatewayProcess) -> None:
        self.authority = authority
        self.nodes = nodes
        headers = {"Authorization": "Bearer development-platform-token"}
        self.api = httpx2.AsyncClient(base_url=nodes[0].api, headers=headers, timeout=30.0, trust_env=False)
        self._agents: list[ScriptedAgent] = []

    def context(self, files: Files | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.authority.file))
        if files is not None:
            made.load_cert_chain(*files)
        return made

    async def dial(
        self, agent: str, files: Files | None, token: str = "", node: int = 0, **headers: str
    ) -> ScriptedAgent:
        """An agent whose link is open, before its hello."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        link = self.nodes[node].link
        secure = link.startswith("ws://") and (files is not None or "--link-tls-cert" in self.nodes[node].flags)
        port = link.rpartition(":")[2]
        socket = await websockets.connect(
            f"wss://localhost:{port}/v1/link" if secure else f"{link}/v1/link",
            subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK)],
            additional_headers=sent,
            compression=None,
            ping_interval=None,
            proxy=None,
            ssl=self.context(files) if secure else None,
        )
        self._agents.append(ScriptedAgent(socket, SUBPROTOCOL_MSGPACK, agent))
        return self._agents[-1]

    async def link(
        self, agent: str, files: Files | None, token: str = "", node: int = 0, **headers: str
    ) -> ScriptedAgent:
        dialled = await self.dial(agent, files, token, node, **headers)
        await dialled.greet(boot=secrets.token_hex(8))
        return dialled

    async def close_code(
        self, agent: str, files: Files | None, token: str = "", node: int = 0, **headers: str
    ) -> tuple[int, str]:
        """The code with which a link is closed that says hello as `agent`, and the reason."""
        dialled = await self.dial(agent, files, token, node, **headers)
        await dialled.send(Hello(agent=agent, boot=secrets.token_hex(8), conn=1))
        code = await dialled.close_code()
        return code, dialled.socket.close_reason or ""

    async def refusal(
        self, agent: str, files: Files | None, token: str = "", node: int = 0, **headers: str
    ) -> tuple[int, str]:
        """The status and the text with which the upgrade is refused."""
        try:
            await self.dial(agent, files, token, node, **headers)
        except websockets.InvalidStatus as refused:
            return refused.response.status_code, bytes(refused.response.body or b"").decode()
        raise AssertionError("the link was opened")

    async def revoke(self, agent: str) -> str:
        answer = await self.api.post(f"/v1/agents/{agent}/key/revocation")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["key"])

    async def release(self, agent: str) -> int:
        return (await self.api.delete(f"/v1/agents/{agent}/key")).status_code

    async def aclose(self) -> None:
        for agent in self._agents:
            agent.socket.transport.abort()
        await self.api.aclose()


TOKEN = AGENT_TOKEN
