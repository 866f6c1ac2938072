"""Schedules: runs that begin again and again, as the API shows them.

`ScheduleRequests` is `schedules` of a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fairlead.client.transport import Request, Transport
from fairlead.wire.ids import check_run_id


@dataclass(frozen=True, slots=True)
class StartInfo:
    """How the last start went. `outcome` is started, missed, forbidden, no_agents, or the code of an error."""

    outcome: str
    due: str | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule. Times are RFC 3339; `next` is when its next run begins."""

    id: str
    name: str
    cron: str
    zone: str
    missed: str
    method: str
    selector: str
    subject: str
    created: str | None = None
    next: str | None = None
    last: StartInfo | None = None


class _Schedules(msgspec.Struct):
    schedules: list[ScheduleInfo]


class ScheduleRequests:
    """The requests about schedules as methods."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        name: str,
        cron: str,
        method: str,
        payload: object = None,
        *,
        selector: str,
        zone: str = "UTC",
        missed: str = "skip",
        pace: Mapping[str, object] | None = None,
    ) -> ScheduleInfo:
        """Have a run of `method` begin whenever `cron` holds, on the agents that match at that moment. `pace` has the
        other members of the run, as of `runs.begin`."""
        run = {"method": method, "payload": {} if payload is None else payload, "selector": selector, **(pace or {})}
        order = {"name": name, "cron": cron, "zone": zone, "missed": missed, "run": run}
        headers = {"Content-Type": "application/json"}
        request = Request("POST", "/v1/schedules", None, headers, msgspec.json.encode(order))
        return await self._transport.ask(request, ScheduleInfo)

    async def list(self) -> list[ScheduleInfo]:
        """The schedules that the caller may see, the oldest first."""
        return (await self._transport.ask(Request("GET", "/v1/schedules"), _Schedules)).schedules

    async def remove(self, schedule: str) -> None:
        """Begin no further run. One that has begun goes on."""
        await self._transport.call(Request("DELETE", f"/v1/schedules/{check_run_id(schedule)}"))
