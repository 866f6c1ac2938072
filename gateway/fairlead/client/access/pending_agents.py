"""The agents that want to enrol and wait for an administrator: `Client.pending_agents`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fairlead.client.transport import Request, Transport
from fairlead.wire.ids import check_agent_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAgentInfo:
    """An agent that waits. `key` is the thumbprint of its key, `state` pending, approved or denied, `token` the id of
    its enrolment token. Times are RFC 3339."""

    agent: str
    key: str
    state: str = "pending"
    token: str = ""
    address: str = ""
    first: str = ""
    last: str = ""


class _PendingList(msgspec.Struct):
    agents: list[PendingAgentInfo]


class PendingAgents:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> list[PendingAgentInfo]:
        """All, ordered by id and by time."""
        return (await self._transport.ask(Request("GET", "/v1/pending-agents"), _PendingList)).agents

    async def approve(self, shown: PendingAgentInfo) -> None:
        """Approve the enrolment of an agent with the key and the token that were shown."""
        await self._decide(shown, "approval")

    async def deny(self, shown: PendingAgentInfo) -> None:
        """Deny the enrolment of an agent with the key and the token that were shown, for a day."""
        await self._decide(shown, "denial")

    async def _decide(self, shown: PendingAgentInfo, what: str) -> None:
        path = f"/v1/pending-agents/{check_agent_id(shown.agent)}/{what}"
        body = msgspec.json.encode({"key": shown.key, "token": shown.token})
        await self._transport.call(Request("POST", path, None, {"Content-Type": "application/json"}, body))
