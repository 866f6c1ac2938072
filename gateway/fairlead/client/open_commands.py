"""The list of commands that have not ended, as the API gives it.

Made by `Client`, whose `commands` it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from fairlead.client.transport import Request, Transport
from fairlead.wire.ids import check_agent_id


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The agent of a command, and how far it has come there. `attempt` is above 0 if it was sent again."""

    agent: str
    state: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class OpenCommand:
    """A command that has not ended. Times are RFC 3339."""

    id: str
    method: str
    lane: str
    state: str
    targets: list[CommandTarget]
    subject: str | None = None
    created: str | None = None
    expires: str | None = None
    cancel_asked: bool = False
    results: int = 0


class _CommandPage(msgspec.Struct):
    commands: list[OpenCommand]
    cursor: str | None = None


class OpenCommandRequests:
    """The requests about commands that have not ended, as methods."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, *, agent: str = "", method: str = "", state: str = "") -> AsyncGenerator[OpenCommand]:
        """The commands that have not ended and whose results the caller may read: of one agent, or of all. `state` is
        queued, sent or running. One that ends meanwhile may be missing; each is yielded once."""
        given = {"agent": check_agent_id(agent) if agent else "", "method": method, "state": state}
        params: dict[str, str | int] = {name: value for name, value in given.items() if value}
        params["limit"] = 1_000
        seen: set[str] = set()
        while True:
            page = await self._transport.ask(Request("GET", "/v1/commands", params), _CommandPage)
            for one in page.commands:
                if one.id not in seen:
                    seen.add(one.id)
                    yield one
            if page.cursor is None:
                return
            params["cursor"] = page.cursor
