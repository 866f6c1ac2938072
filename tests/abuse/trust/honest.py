"""Everybody who is honest in an attack on trust: the administrator, and real agents that keep their links meanwhile."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from fairlead.agent import Agent
from fairlead.agent.identity import AgentIdentity
from fairlead.agent.identity.identity_folder import IdentityFolder
from fairlead.fleet.tokens.enrolment_tokens import EnrolmentTokens
from fairlead.identity.agent_key import AgentKey, base64url
from fairlead.identity.enrolment_token import split_token
from fairlead.identity.proof import enrolment_statement, prove
from fairlead.store.pipeliner import Pipeliner

from abuse.attempts import Site
from abuse.victim import AGENT_TOKEN, PLATFORM_TOKEN
from support.plain_http import plain_client
from support.waiting import until


class Honest:
    """`async with Honest(site) as honest:`; its agents end with it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.folder = Path(site.folder)
        self.link = f"ws://127.0.0.1:{site.link}"
        self.http = self.caller(PLATFORM_TOKEN)
        self.public = plain_client(base_url=f"http://127.0.0.1:{site.link}", timeout=30)
        self.store = Pipeliner(site.redis)
        self.tokens = EnrolmentTokens(self.store)
        self._agents: list[tuple[Agent, asyncio.Task[None]]] = []
        self._opened: dict[str, str] = {}
        """When the links of the real agents were opened."""

    async def __aenter__(self) -> Honest:
        self.store.start()
        assert await self.store.wait_available(30)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent, _ in self._agents:
            agent.stop()
        await asyncio.gather(*(task for _, task in self._agents), return_exceptions=True)
        await self.http.aclose()
        await self.public.aclose()
        await self.store.aclose()

    def caller(self, token: str, api: str = "") -> Any:
        """The platform API of the victim, or the one at this URL, as whoever has this token uses it."""
        headers = {"authorization": f"Bearer {token}"}
        return plain_client(base_url=api or f"http://127.0.0.1:{self.site.api}", headers=headers, timeout=60)

    async def service_caller(self, name: str) -> Any:
        """The same with a new service token."""
        made = await self.http.post("/v1/tokens", json={"name": name})
        assert made.status_code == 201, made.text
        return self.caller(made.json()["token"])

    async def enrolment_token(self, agents: str = "*", **more: object) -> str:
        made = await self.http.post("/v1/enrolment-tokens", json={"agents": agents, "uses": 100, **more})
        assert made.status_code == 201, made.text
        return str(made.json()["token"])

    async def enrolled(self, agent: str) -> tuple[AgentKey, str]:
        """The key and the credential of a new agent."""
        token, key = await self.enrolment_token(), AgentKey(os.urandom(32))
        id, _ = split_token(token) or ("", "")
        proof = prove(key, enrolment_statement(id, agent, key.public))
        order = {"token": token, "agent": agent, "key": base64url(key.public), "proof": proof}
        answer = await self.public.post("/v1/enrolments", json=order)
        assert answer.status_code == 201, answer.text
        return key, str(answer.json()["credential"])

    async def serve_enrolled(self, agent: str) -> tuple[AgentKey, str]:
        """A real agent that has enrolled; what a thief of its disk would have."""
        folder = self.folder / f"{agent}-identity"
        await self.serve(agent, AgentIdentity(folder, await self.enrolment_token()))
        stored = IdentityFolder(folder).load_credential(agent)
        assert stored is not None
        return IdentityFolder(folder).load_key(), stored.credential

    async def serve(self, id: str, token: Any = AGENT_TOKEN, *, agent: Agent | None = None) -> None:
        """Start an agent and wait until it is linked."""
        agent = agent or Agent(self.link, id, token)
        self._agents.append((agent, asyncio.create_task(agent.serve())))
        await until(lambda: self.watch(id))

    async def watch(self, id: str) -> bool:
        """Whether an agent is linked; from now on it is known since when."""
        since = await self._since(id)
        if since:
            self._opened[id] = since
        return bool(since)

    async def _since(self, id: str) -> str:
        """When its link was opened; "" if it has none."""
        answer = await self.http.get(f"/v1/agents/{id}")
        online = answer.status_code == 200 and answer.json()["state"] == "online"
        return str(answer.json()["since"]) if online else ""

    async def stayed(self, id: str) -> str:
        since = await self._since(id)
        return "has stayed" if since == self._opened[id] else "has moved" if since else "is gone"
