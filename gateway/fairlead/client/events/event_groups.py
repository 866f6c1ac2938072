"""The groups that share the events of agents among their readers: `Client.event_groups`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from fairlead.client.transport import Request, Transport

BATCH = 1_000
"""Offsets in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGroupInfo:
    """A group of readers: what it reads, its offset, the events that its readers have not acknowledged (`pending`) and
    those that it has not read (`lag`, at most). `lost` is the last offset at which it has lost events. Times are RFC
    3339."""

    name: str
    owner: str = ""
    agent: str = ""
    type: str = ""
    selector: str = ""
    offset: str = ""
    pending: int = 0
    lag: int = 0
    lost: str | None = None
    lost_at: str | None = None
    began: str = ""
    used: str = ""


class _Groups(msgspec.Struct):
    groups: list[EventGroupInfo]


class _Acknowledged(msgspec.Struct):
    acknowledged: int


class EventGroupRequests:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> list[EventGroupInfo]:
        """Those that the caller has made, and for an administrator all."""
        return (await self._transport.ask(Request("GET", "/v1/event-groups"), _Groups)).groups

    async def acknowledge(self, group: str, offsets: Sequence[str]) -> int:
        """Acknowledge the events with these offsets, so that no reader of the group gets them again. Returns how many
        of them waited for it."""
        count, path = 0, f"{_path(group)}/acknowledgements"
        for at in range(0, len(offsets), BATCH):
            content = msgspec.json.encode({"offsets": offsets[at : at + BATCH]})
            headers = {"Content-Type": "application/json"}
            request = Request("POST", path, None, headers, content)
            count += (await self._transport.ask(request, _Acknowledged)).acknowledged
        return count

    async def remove(self, group: str) -> None:
        await self._transport.call(Request("DELETE", _path(group)))


def _path(group: str) -> str:
    return f"/v1/event-groups/{quote(group, safe='')}"
