"""The keys to which the ids of agents are bound: `Client.agent_keys`."""

from __future__ import annotations

import msgspec

from fairlead.client.transport import Request, Transport
from fairlead.wire.ids import check_agent_id


class _RevokedKey(msgspec.Struct):
    key: str


class AgentKeyRequests:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def release(self, agent: str) -> None:
        """Release the id of an agent from its key, so that another key may enrol with it."""
        await self._transport.call(Request("DELETE", _path(agent)))

    async def revoke(self, agent: str) -> str:
        """Revoke the key of an agent, which closes its link. Returns the key's thumbprint."""
        return (await self._transport.ask(Request("POST", f"{_path(agent)}/revocation"), _RevokedKey)).key


def _path(agent: str) -> str:
    return f"/v1/agents/{check_agent_id(agent)}/key"
