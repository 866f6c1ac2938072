"""A node that enrols agents, for tests, and agents that follow the protocol as they like. Enrolment tokens are written
to Redis directly."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import httpx2
import msgspec
import websockets

from fairlead.fleet.tokens.agent_keys import AgentKeys
from fairlead.fleet.tokens.enrolment_tokens import EnrolmentTokens
from fairlead.identity.agent_key import AgentKey, base64url
from fairlead.identity.enrolment_token import ID_BYTES, SECRET_BYTES, EnrolmentToken, new_token, split_token
from fairlead.identity.proof import enrolment_statement, link_statement, prove
from fairlead.store.pipeliner import Pipeliner
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hello, Resume

from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import ScriptedAgent

FAR = 4_000_000_000_000


class IdentitySite:
    """A node that enrols agents, what its administrator does, and agents that follow the protocol as they like."""

    def __init__(self, node: GatewayProcess, store: Pipeliner) -> None:
        self.node, self.store = node, store
        self.tokens, self.keys = EnrolmentTokens(store), AgentKeys(store)
        self.http = httpx2.AsyncClient(base_url=node.link.replace("ws://", "http://"), timeout=30.0, trust_env=False)
        self._agents: list[ScriptedAgent] = []

    async def token(self, uses: int = 100) -> str:
        id, digest, text = new_token(os.urandom(ID_BYTES + SECRET_BYTES))
        await self.tokens.add(id, msgspec.json.encode(EnrolmentToken(id, digest, 0, FAR, "*", uses)), FAR)
        return text

    async def enrol(self, agent: str, key: AgentKey, token: str = "") -> httpx2.Response:
        token = token or await self.token()
        id, _ = split_token(token) or ("", "")
        proof = prove(key, enrolment_statement(id, agent, key.public))
        body = {"token": token, "agent": agent, "key": base64url(key.public), "proof": proof}
        return await self.http.post("/v1/enrolments", json=body)

    async def credential(self, agent: str, key: AgentKey) -> str:
        answer = await self.enrol(agent, key)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["credential"])

    async def dial(self, agent: str, credential: str) -> tuple[ScriptedAgent, str]:
        """An agent whose link is open, and the nonce that it was given."""
        socket = await websockets.connect(
            f"{self.node.link}/v1/link",
            subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK)],
            additional_headers={"Authorization": f"Bearer {credential}"},
            compression=None,
            ping_interval=None,
            proxy=None,
        )
        self._agents.append(ScriptedAgent(socket, SUBPROTOCOL_MSGPACK, agent))
        assert socket.response is not None
        return self._agents[-1], socket.response.headers.get("fairlead-nonce", "")

    async def link(
        self, agent: str, credential: str, key: AgentKey, conn: int = 1, session: str = "", boot: str = "boot-1"
    ) -> ScriptedAgent:
        """A welcomed agent, which has shown `session`."""
        dialled, nonce = await self.dial(agent, credential)
        proof = prove(key, link_statement(nonce, agent, credential, session))
        await dialled.greet(conn=conn, proof=proof, resume=Resume(session) if session else None, boot=boot)
        return dialled

    async def close_code(
        self, agent: str, credential: str, proof: str = "", key: AgentKey | None = None, session: str = "",
        proved: str | None = None,
    ) -> int:  # fmt: skip
        """The code with which a link is closed whose hello has this proof, or one with `key`. It shows `session`, and
        its proof is for `proved`, or for that."""
        dialled, nonce = await self.dial(agent, credential)
        if key is not None:
            proof = prove(key, link_statement(nonce, agent, credential, session if proved is None else proved))
        resume = Resume(session) if session else None
        await dialled.send(Hello(agent=agent, boot=secrets.token_hex(8), conn=1, proof=proof, resume=resume))
        return await dialled.close_code()

    async def aclose(self) -> None:
        for agent in self._agents:
            agent.socket.transport.abort()
        await self.http.aclose()


def make_issuer_key(folder: Path) -> Path:
    key = folder / "issuer.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True, timeout=30)
    return key


def new_key() -> AgentKey:
    return AgentKey(os.urandom(32))


async def still_linked(agent: ScriptedAgent) -> None:
    await (await agent.socket.ping())
