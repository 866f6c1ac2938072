"""The sinks to which events are delivered, and what could not be delivered: `Client.event_sinks`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from fairlead.client.transport import Request, Transport

BATCH = 16
"""Dead letters that one request sends again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSinkInfo:
    """A sink, and how far it has come. `pending` events are under way or wait for another attempt. Times are RFC
    3339."""

    name: str
    host: str = ""
    type: str = ""
    selector: str = ""
    node: str = ""
    offset: str | None = None
    pending: int = 0
    lag: int = 0
    lost: str | None = None
    lost_at: str | None = None
    dead_letters: int = 0
    error: str | None = None
    error_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterInfo:
    """An event that could not be delivered. `event` is the agent's own id of it."""

    id: str
    agent: str = ""
    type: str = ""
    event: str = ""
    offset: str = ""
    attempts: int = 0
    error: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriedLetterInfo:
    id: str
    delivered: bool
    error: str | None = None


class _Sinks(msgspec.Struct):
    sinks: list[EventSinkInfo]


class _Page(msgspec.Struct):
    dead_letters: list[DeadLetterInfo]
    cursor: str | None = None


class _Results(msgspec.Struct):
    results: list[RetriedLetterInfo]


class EventSinkRequests:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def dead_letters(self, sink: str) -> AsyncGenerator[DeadLetterInfo]:
        """The events that a sink could not deliver, the oldest first."""
        params: dict[str, str | int] = {}
        while True:
            page = await self._transport.ask(Request("GET", _path(sink), params), _Page)
            for letter in page.dead_letters:
                yield letter
            if page.cursor is None:
                return
            params = {"cursor": page.cursor}

    async def retry(self, sink: str, ids: Sequence[str]) -> list[RetriedLetterInfo]:
        """Send dead letters again, and tell what became of each."""
        found: list[RetriedLetterInfo] = []
        for at in range(0, len(ids), BATCH):
            content = msgspec.json.encode({"ids": ids[at : at + BATCH]})
            request = Request("POST", f"{_path(sink)}/retry", None, {"Content-Type": "application/json"}, content)
            found += (await self._transport.ask(request, _Results)).results
        return found

    async def discard(self, sink: str, id: str) -> None:
        await self._transport.call(Request("DELETE", f"{_path(sink)}/{quote(id, safe='')}"))

    async def list(self) -> list[EventSinkInfo]:
        """All sinks of the tenant."""
        return (await self._transport.ask(Request("GET", "/v1/event-sinks"), _Sinks)).sinks


def _path(sink: str) -> str:
    return f"/v1/event-sinks/{quote(sink, safe='')}/dead-letters"
