"""`/v1/agents`: who is there, where, since when, and why not.

Served from the directory's index, never by asking the nodes: a slow node cannot make it wait.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.commands import whole
from fairlead.app.times import iso
from fairlead.errors import AgentUnknown, InvalidRequest
from fairlead.fleet.schema import INDEX_SHARDS, AgentRow, Presence
from fairlead.node import Node
from fairlead.wire.close import describe as describe_close
from fairlead.wire.identity import check_agent_id

PAGE = 100
PAGE_LIMIT = 1_000

_encode = msgspec.json.Encoder().encode


class AgentRoutes:
    def __init__(self, node: Node) -> None:
        self._directory = node.directory
        self._dispatch = node.dispatch
        self._standing = node.standing

    async def list(self, request: Request) -> Response:
        """One page, and the cursor of the next; no cursor: that was all. Ordered by shard, then by name."""
        limit = max(1, whole(request, "limit", PAGE, PAGE_LIMIT))
        shard, after = _cursor(request.query_params.get("cursor", ""))
        names: list[str] = []
        while shard < INDEX_SHARDS and len(names) < limit:
            found = await self._directory.page(shard, after, limit - len(names))
            names += found
            if len(names) < limit:
                shard, after = shard + 1, ""
            else:
                after = found[-1]
        rows = await self._directory.look_up_all(names)
        cursor = f"{shard}:{after}" if shard < INDEX_SHARDS else None
        page = {"agents": [self._describe(row) for row in rows], "cursor": cursor}
        return Response(_encode(page), media_type="application/json")

    async def get(self, request: Request) -> Response:
        agent = check_agent_id(request.path_params["id"])
        row = await self._directory.look_up(agent)
        if row is None:
            await self._dispatch.check_data()
            raise AgentUnknown(f"no agent {agent!r} was ever seen here", agent=agent)
        answer = self._describe(row)
        answer["open_commands"] = sorted(await self._directory.open_commands(agent))
        answer["session"] = {"sid": row.sid, "gen": row.gen, "boot": row.boot, "conn": row.conn}
        return Response(_encode(answer), media_type="application/json")

    def _describe(self, row: AgentRow) -> dict[str, object]:
        presence, since, why = self._standing.table.presence(row, self._standing.now())
        online = presence is Presence.ONLINE
        return {
            "id": row.agent,
            "state": presence.value,
            "node": row.lease.partition("#")[0] if online else None,
            "since": iso(since),
            "why": None if online else why,
            "last_close": describe_close(row.close) if row.close else None,
            "facts": msgspec.json.decode(row.facts or "{}"),
        }


def _cursor(text: str) -> tuple[int, str]:
    if not text:
        return 0, ""
    shard, colon, after = text.partition(":")
    if not colon or not shard.isascii() or not shard.isdigit() or len(shard) > 2 or int(shard) >= INDEX_SHARDS:
        raise InvalidRequest(f"cursor {text[:64]!r} is none of ours: begin again without one", field="cursor")
    if after:
        check_agent_id(after)
    return int(shard), after
