"""The handlers of `/v1/agents` and `/v1/links`: list agents, look one up, label, disconnect and delete it, rank links.

Lists are read from the index and the columns in Redis and never ask the nodes, so a slow node cannot delay them. Only
requests for one agent, or for the worst links, ask the nodes for what they alone know.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api import schemas
from fairlead.app.api.link_document import cloned_at, last_close, link_members, seconds
from fairlead.app.api.request_body import decoded, read_body
from fairlead.app.api.schemas import iso
from fairlead.app.routes.agent_counter import AgentCounter
from fairlead.app.routes.commands import flag, whole_number
from fairlead.app.routes.list_cursor import ListCursor
from fairlead.app.routes.list_scheduler import ListScheduler
from fairlead.authorization.policy import Access, Verb
from fairlead.errors import AgentOffline, AgentUnknown, InvalidRequest, Unavailable
from fairlead.fleet import selector
from fairlead.fleet.directory import LABEL_LIMIT
from fairlead.fleet.directory_replies import LabelsChanged, LimitReached
from fairlead.fleet.node_table import Presence
from fairlead.fleet.reports.fact_history import NotedChange
from fairlead.fleet.schema import AgentRow
from fairlead.node import Node
from fairlead.routing.observability.link_stats import MEASURES
from fairlead.routing.observability.worst_links import MAX_LINKS
from fairlead.shards import SHARDS
from fairlead.tenant import local_id, qualified
from fairlead.wire.ids import check_agent_id

PAGE = 100
PAGE_LIMIT = 1_000
SCAN = 2_000
"""Maximum number of agents that one request examines: a selector that few agents match gives short pages, not slow
ones."""
PAGE_TIME = 5.0
"""Seconds that one page may take. When a busy node or a slow Redis takes longer, the answer is what was found so far,
with a cursor for the rest. This is shorter than the timeouts of callers and proxies."""
SLICE = 32
"""The number of agents of a list that are handled in one turn, which takes some 0.5 ms of the event loop's time."""
TOP = 20
"""Default number of links in a ranking: as many as fit on a screen."""
LABELS_LIMIT = 64 << 10
ASIDE = 0.5
"""Seconds to wait for the agent's node. The rest of the answer does not depend on that node, which may be in
trouble."""

_encode = msgspec.json.Encoder().encode
_labels = msgspec.json.Decoder(schemas.Labels)
_decode_map = msgspec.json.Decoder(dict[str, str]).decode


class AgentRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._directory = node.directory
        self._columns = node.columns
        self._fact_history = node.fact_history
        self._registration = node.routing.registration
        self._data_check = node.data_check
        self._link_query = node.routing.link_query
        self._worst_links = node.routing.worst_links
        self._removal = node.routing.removal
        self._membership = node.membership
        self._authorizer = node.authorizer
        self._list_scheduler = ListScheduler()
        self._counter = AgentCounter(node, self._list_scheduler)

    async def list(self, request: Request) -> Response:
        """One page of agents, ordered by shard and name, with the cursor of the next page, if there is one."""
        limit = whole_number(request, "limit", PAGE, PAGE_LIMIT, least=1)
        subject = caller(request)
        cursor = _cursor(request.query_params.get("cursor", ""), subject.tenant)
        position = ListCursor(*cursor, sees_all=subject.administrator)
        wanted = selector.parse(request.query_params.get("selector", ""))
        state = _state(request.query_params.get("state"))
        total = await self._counter.count(subject, wanted, state) if flag(request, "count") else None
        # Each agent is encoded in its own turn: encoding a thousand at once would block the event loop.
        found: list[msgspec.Raw] = []
        left, undecided = SCAN, 0
        try:
            count = PAGE_LIMIT if wanted.terms or state or not subject.administrator else limit
            async with (
                asyncio.timeout(PAGE_TIME),
                self._list_scheduler.place(),
                aclosing(self._columns.pages(*position.begun, count, subject.tenant, wanted)) as pages,
            ):
                async for names, next_shard, next_after in pages:
                    left -= max(len(names), 1)
                    for at in range(0, len(names), SLICE):
                        async with self._list_scheduler.turn():
                            for row in await self._directory.look_up_all(names[at : at + SLICE]):
                                if not position.saw(row, self._authorizer.allows_on_row(subject, Verb.VIEW, row)):
                                    continue
                                one, matches = self._listed(row, wanted, state)
                                undecided += one is not None and matches is None
                                if one is not None and matches:
                                    found.append(msgspec.Raw(_encode(one)))
                                    if len(found) == limit:
                                        break
                        if len(found) == limit:
                            break
                    else:
                        position.page_ended(next_shard, next_after)
                    if len(found) == limit or (left <= 0 and position.moved):
                        break
        except TimeoutError as e:
            if not position.moved:
                raise Unavailable(
                    f"no agent could be read within {PAGE_TIME:g} s: this node is serving "
                    f"{self._list_scheduler.places_taken} lists, or Redis is slow; try again later"
                ) from e
        # After the rows, so that none of them was read after a data loss that this node has not noticed yet.
        await self._data_check.check_index()
        self._auditor.note(request, selector=request.query_params.get("selector", ""))
        await self._auditor.allow(request, len(found))
        page = schemas.AgentPage(cast("list[schemas.Agent]", found), position.cursor, undecided, total)
        return Response(_encode(page), media_type="application/json")

    def _listed(
        self, row: AgentRow, wanted: selector.Selector, state: Presence | None
    ) -> tuple[schemas.Agent | None, bool | None]:
        """The agent of `row`, or None if it does not match; and whether it matches, None if its lost labels decide
        that."""
        matches: bool | None = True
        if wanted.terms:
            # Match before building anything: a selector that few agents match examines thousands of rows.
            labels = None if row.labels_lost else _decode_map(row.labels)
            matches = wanted.matches(labels, _decode_map(row.facts))
            if matches is False:
                return None, False
        one = schemas.Agent(**self._describe(row))
        return (one, matches) if state in (None, one.state) else (None, False)

    async def get(self, request: Request) -> Response:
        row = await self._row(request, Verb.VIEW)
        await self._auditor.allow(request)
        # Both tell what others run on the agent, and a failure may quote what came of it.
        sees_commands = self._authorizer.allows_on_row(caller(request), Verb.RESULTS, row)
        open_commands = await self._directory.open_commands(row.agent) if sees_commands else []
        failures = [line.partition(" ") for line in row.failures.splitlines() if sees_commands]
        answer = schemas.AgentDetail(
            **self._describe(row),
            last_reason=last_close(row, self._membership.table, self._membership.now())[1],
            link=schemas.LastLink(row.sid, row.gen, row.boot, row.conn, await self._round_trip(row)),
            recent_failures=[schemas.FailedCommand(iso(int(at)) or "", message) for at, _, message in failures],
            open_commands=sorted(open_commands),
            fact_changes=[_changed(change) for change in await self._fact_history.read(row.agent)],
        )
        return Response(_encode(answer), media_type="application/json")

    async def label(self, request: Request) -> Response:
        """Set or remove labels; the answer has all labels of the agent."""
        agent, subject = request.path_params["agent"], caller(request)
        changes = decoded(_labels, await read_body(request, LABELS_LIMIT)).labels
        self._authorizer.require_still(subject, (Verb.LABEL,))
        checked = None
        if not subject.administrator:
            row = await self._row(request, Verb.LABEL)
            self._authorizer.require_labelled(subject, row, changes)
            checked = row.labels
        self._auditor.note(request, detail=_encode(changes).decode())
        await self._auditor.allow(request)
        labels = await self._directory.label(agent, changes, checked)
        self._authorizer.forget_labels(agent)
        if labels is None:
            raise self._unknown(agent)
        if isinstance(labels, LabelsChanged):
            raise Unavailable(
                f"the labels of agent {local_id(agent)!r} were changed by another request, and nothing by this one: "
                "try again"
            )
        if isinstance(labels, LimitReached):
            raise InvalidRequest(f"{labels.count} labels exceed the maximum of {LABEL_LIMIT}", field="labels")
        return Response(_encode(schemas.Labels(dict(labels))), media_type="application/json")

    async def link(self, request: Request) -> Response:
        """The state of the agent's link, as measured by the node that holds it."""
        row = await self._row(request, Verb.VIEW)
        await self._auditor.allow(request)
        presence, _, why = self._membership.table.presence(row, self._membership.now())
        if presence is not Presence.ONLINE:
            raise AgentOffline(f"agent {local_id(row.agent)!r} has no link: {why}", agent=local_id(row.agent))
        node = row.lease.partition("#")[0]
        state = await self._link_query.fetch(row)
        if state is None:
            raise Unavailable(
                f"node {node!r}, which holds agent {local_id(row.agent)!r}, did not answer in time", node=node
            )
        return Response(
            _encode(schemas.Link(**link_members(node, state, row, self._membership.table, self._membership.now()))),
            media_type="application/json",
        )

    async def worst(self, request: Request) -> Response:
        """The worst links of the fleet, as their nodes rank them."""
        by = request.query_params.get("by", MEASURES[0])
        if by not in MEASURES:
            raise InvalidRequest(f"invalid by {by[:32]!r}: expected one of {', '.join(MEASURES)}", field="by")
        subject, limit = caller(request), whole_number(request, "limit", TOP, MAX_LINKS, least=1)
        worst, missing = await self._worst_links.find(subject.tenant, by, limit)
        table, now = self._membership.table, self._membership.now()
        sessions = [
            schemas.RankedLink(agent=local_id(one.link.agent), **link_members(one.node, one.link, one.row, table, now))
            for one in worst
            if subject.administrator
            or (one.row is not None and self._authorizer.allows_on_row(subject, Verb.VIEW, one.row))
        ]
        await self._auditor.allow(request, len(sessions))
        return Response(_encode(schemas.LinkRanking(sessions, missing)), media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Delete an agent that has no link, with everything that is stored about it."""
        row = await self._row(request, Verb.DELETE)
        await self._auditor.allow(request)
        commands, events = await self._removal.delete(row)
        return Response(
            _encode(schemas.DeletedAgent(local_id(row.agent), commands, events)), media_type="application/json"
        )

    async def disconnect(self, request: Request) -> Response:
        """Close the agent's link; the agent connects again."""
        row = await self._row(request, Verb.DISCONNECT)
        await self._auditor.allow(request)
        presence, _, why = self._membership.table.presence(row, self._membership.now())
        if presence is not Presence.ONLINE:
            raise AgentOffline(f"agent {local_id(row.agent)!r} has no link to close: {why}", agent=local_id(row.agent))
        self._registration.disconnect(row)
        answer = schemas.DisconnectedAgent(local_id(row.agent), row.lease.partition("#")[0])
        return Response(_encode(answer), 202, media_type="application/json")

    async def _round_trip(self, row: AgentRow) -> float | None:
        """Seconds; None if the agent has no link or has sent no heartbeat yet, and if its node does not answer."""
        presence, _, _ = self._membership.table.presence(row, self._membership.now())
        state = await self._link_query.fetch(row, ASIDE) if presence is Presence.ONLINE else None
        return None if state is None else seconds(state.rtt)

    async def _row(self, request: Request, verb: Verb) -> AgentRow:
        """The row of the agent that the path names. Raises PermissionDenied if the caller may not do `verb` to it, and
        AgentUnknown if there is none and the caller might: whether an agent of others exists is theirs to know."""
        agent, subject = request.path_params["agent"], caller(request)
        row = await self._directory.look_up(agent)
        if row is not None:
            self._authorizer.require_on_row(subject, verb, row)
        else:
            await self._authorizer.require(subject, Access(verb), agent)
            await self._data_check.check_agent()
            raise self._unknown(agent)
        return row

    def _unknown(self, agent: str) -> AgentUnknown:
        name = local_id(agent)
        return AgentUnknown(f"unknown agent {name!r}: no agent with this id has ever connected", agent=name)

    def _describe(self, row: AgentRow) -> dict[str, Any]:
        table, now = self._membership.table, self._membership.now()
        presence, since, why = table.presence(row, now)
        online = presence is Presence.ONLINE
        return {
            "id": local_id(row.agent),
            "state": presence,
            "node": row.lease.partition("#")[0] if online else None,
            "since": iso(since),
            "why": None if online else why,
            "last_close": last_close(row, table, now)[0],
            "facts": _decode_map(row.facts),
            "labels": _decode_map(row.labels),
            "labels_lost": iso(row.labels_lost),
            "cloned": iso(cloned_at(row, now)),
        }


def _state(text: str | None) -> Presence | None:
    if text is None:
        return None
    try:
        return Presence(text)
    except ValueError as e:
        raise InvalidRequest(
            f"invalid state {text[:32]!r}: expected one of {', '.join(Presence)}", field="state"
        ) from e


def _changed(change: NotedChange) -> schemas.FactChange:
    facts = {key: schemas.ChangedFact(*values) for key, values in sorted(change.facts.items())}
    return schemas.FactChange(iso(change.at) or "", facts, change.more)


def _cursor(text: str, tenant: str) -> tuple[int, str]:
    if not text:
        return 0, ""
    shard, colon, after = text.partition(":")
    if not colon or not shard.isascii() or not shard.isdigit() or len(shard) > 2 or int(shard) >= SHARDS:
        raise InvalidRequest(
            f"invalid cursor {text[:64]!r}: expected the cursor of the page before; start again without one",
            field="cursor",
        )
    return int(shard), qualified(tenant, check_agent_id(after)) if after else ""
