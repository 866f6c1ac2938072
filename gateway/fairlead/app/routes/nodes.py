"""The handler of `/v1/nodes`: lists the nodes of the fleet.

The rows are read from Redis, and no node is asked, so one in trouble neither delays the list nor is missing from it.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.auditor import Auditor
from fairlead.app.api.node_schemas import FleetNode, NodeList, NodeState
from fairlead.app.api.schemas import iso
from fairlead.errors import InvalidRequest
from fairlead.fleet.node_table import NodeRow
from fairlead.node import Node

_encode = msgspec.json.Encoder().encode


class NodeRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._rows = node.node_rows
        self._membership = node.membership

    async def list(self, request: Request) -> Response:
        wanted = _state(request.query_params.get("state"))
        # The table in `membership` has old counts.
        now = self._membership.now()
        table = await self._rows.read_all(now, self._membership.alive_since)
        shown = [_describe(row, now) for row in sorted(table.rows(), key=lambda row: row.node)]
        found = [one for one in shown if wanted in (None, one.state)]
        await self._auditor.allow(request, len(found))
        return Response(_encode(NodeList(found)), media_type="application/json")


def _describe(row: NodeRow, now: int) -> FleetNode:
    return FleetNode(
        name=row.node,
        state=_state_of(row, now),
        excluded_by=row.excluded_by or None,
        links=row.links,
        capacity=row.capacity,
        commands=row.in_flight,
        cpu=row.cpu,
        memory=row.memory,
        lag=round(row.lag_ms / 1000, 6),
        accepted=row.accepted,
        refused=row.refused,
        moved=row.moved,
        since=iso(row.began) or "",
        heartbeat=iso(row.at) or "",
        version=row.version,
    )


def _state_of(row: NodeRow, now: int) -> NodeState:
    if row.state == "stopped":
        return NodeState.STOPPED
    if not row.alive(now):
        return NodeState.LOST
    return NodeState.DRAINING if row.state == "draining" else NodeState.SERVING


def _state(text: str | None) -> NodeState | None:
    if text is None:
        return None
    try:
        return NodeState(text)
    except ValueError as e:
        raise InvalidRequest(
            f"invalid state {text[:32]!r}: expected one of {', '.join(NodeState)}", field="state"
        ) from e
