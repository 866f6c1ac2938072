"""The parts of the API's documents that describe an agent's link: its present state, and how the last one ended.

The handlers of `/v1/agents` use it. How links ended comes from the fleet's store, and the rest from the node that holds
the link.
"""

from __future__ import annotations

from typing import Any

from fairlead.app.api import schemas
from fairlead.app.api.schemas import iso
from fairlead.fleet.directory import CLONED_MS
from fairlead.fleet.node_table import NodeTable, UnrecordedEnd
from fairlead.fleet.schema import AgentRow
from fairlead.routing.observability.link_stats import LinkStats
from fairlead.telemetry.command_timing import STAGES
from fairlead.wire.close_codes import CloseCode, describe


def last_close(row: AgentRow, table: NodeTable, now: int) -> tuple[str | None, str | None]:
    """The close code of the agent's last link with its meaning, and the reason. Each is None if it is not known.

    A node that was killed has recorded nothing, and an older close must not stand in for it. `now`: Redis TIME in ms.
    """
    end = table.unrecorded_end(row, now)
    if end is None:
        return describe(row.close) if row.close else None, row.reason or None
    if end.alive:
        return None, f"{end.node} has not recorded yet how it ended"
    return describe(CloseCode.ABNORMAL), f"{end.node} ended without closing the link{_when(end)}"


def cloned_at(row: AgentRow, now: int) -> int:
    """When two copies of the agent were last found to use its key (Redis TIME in ms); 0 if never, or if they have not
    been for a day and the key was not revoked for it."""
    return row.cloned if now - row.cloned <= CLONED_MS or row.close == CloseCode.REVOKED else 0


def _when(end: UnrecordedEnd) -> str:
    if end.heartbeat:
        return f", after its heartbeat of {iso(end.heartbeat)}"
    return f", before {iso(end.before)}" if end.before else ""


def link_members(node: str, state: LinkStats, row: AgentRow | None, table: NodeTable, now: int) -> dict[str, Any]:
    """The members of `schemas.Link`."""
    closed, reason = None, None
    if row is not None:
        closed, reason = last_close(row, table, now)
    spreads = {name: spread for name, spread in zip(STAGES, state.stages, strict=False) if spread is not None}
    return {
        "node": node,
        "sid": state.sid,
        "age": state.age_ms / 1000,
        "rtt": seconds(state.rtt),
        "round_trips": None
        if state.round_trips is None
        else schemas.Latency(state.round_trips.p50, state.round_trips.p99),
        "latency": {name: schemas.Latency(spread.p50, spread.p99) for name, spread in spreads.items()},
        "ended": state.ended,
        "failed": state.failed,
        "reconnects": max(0, (row.conn if row is not None else state.conn) - 1),
        "last_close": closed,
        "last_reason": reason,
        "encoding": state.encoding,
        "messages": state.messages,
        "commands": state.streams,
        "unstored": state.unstored,
        "undelivered": state.undelivered,
        "congested": state.congested,
    }


def seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
