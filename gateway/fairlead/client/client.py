"""`Client`: the requests of the platform API as methods.

Used by scripts, services and the command line. What belongs together, such as runs, is an attribute with methods of its
own. `transport` decodes answers and raises the errors of requests, and `command` follows a command.
"""

from __future__ import annotations

import hashlib
import secrets
import ssl as tls
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Literal, TypeVar

import msgspec

from fairlead.client.access.agent_keys import AgentKeyRequests
from fairlead.client.access.approvals import Approvals
from fairlead.client.access.enrolment_tokens import EnrolmentTokenRequests
from fairlead.client.access.pending_agents import PendingAgents
from fairlead.client.access.service_tokens import ServiceTokenRequests
from fairlead.client.command import NDJSON, Command
from fairlead.client.event_reader import EventReader
from fairlead.client.events.event_groups import EventGroupRequests
from fairlead.client.events.event_sinks import EventSinkRequests
from fairlead.client.models import (
    Agent,
    AgentDetail,
    Deleted,
    Identity,
    Link,
    MethodInfo,
    NodeInfo,
    Permission,
    Ranking,
    TenantInfo,
)
from fairlead.client.open_commands import OpenCommandRequests
from fairlead.client.run import RunRequests
from fairlead.client.schedules import ScheduleRequests
from fairlead.client.signer import SignedCommand, Signer
from fairlead.client.transport import Request, Transport
from fairlead.errors import InvalidRequest
from fairlead.wire.ids import check_agent_id, check_command_id

PAGE = 500
"""Number of agents in one page, which then has some 200 KiB."""

T = TypeVar("T")


class _Page(msgspec.Struct):
    agents: list[Agent]
    cursor: str | None = None
    count: int | None = None


class _Nodes(msgspec.Struct):
    nodes: list[NodeInfo]


class _Labels(msgspec.Struct):
    labels: dict[str, str]


class _Tenants(msgspec.Struct):
    tenants: list[TenantInfo]


class _Methods(msgspec.Struct):
    methods: list[MethodInfo]


class _Cancelled(msgspec.Struct):
    state: str


class Client:
    """The platform API at one address, or at several of one fleet, separated by commas. It belongs to one event loop.

    A malformed id of an agent or a command raises InvalidRequest before anything is sent.
    """

    def __init__(
        self,
        api: str,
        token: str,
        *,
        ssl: tls.SSLContext | None = None,
        signer: Signer | None = None,
        approval: str = "",
        tenant: str = "",
    ) -> None:
        """With a `signer`, every command and run is signed, for agents that run no other. What is posted names the
        `approval`, which takes the place of an Idempotency-Key and is for one command or run. A `tenant` has to be
        named by callers of several, and by whoever has the platform token, which otherwise stands for the default
        tenant."""
        self._transport = Transport(api, token, ssl, approval, tenant)
        self._signer = signer
        self.runs = RunRequests(self._transport, signer)
        """The requests about runs: one method on many agents."""
        self.schedules = ScheduleRequests(self._transport)
        """Those about runs that begin again and again."""
        self.commands = OpenCommandRequests(self._transport)
        """Those about the commands that have not ended."""
        self.tokens = ServiceTokenRequests(self._transport)
        """Those about the tokens of programs and persons that call the API."""
        self.enrolment_tokens = EnrolmentTokenRequests(self._transport)
        """Those about the tokens with which new agents enrol."""
        self.agent_keys = AgentKeyRequests(self._transport)
        """Those about the keys to which the ids of agents are bound."""
        self.pending_agents = PendingAgents(self._transport)
        """Those about agents that wait for an administrator."""
        self.approvals = Approvals(self._transport)
        """Those for an approval of a second person."""
        self.event_groups = EventGroupRequests(self._transport)
        """Those about groups of readers that share events."""
        self.event_sinks = EventSinkRequests(self._transport)
        """Those about the sinks that events are delivered to, and what could not be delivered."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def agents(self, selector: str = "", state: str = "") -> AsyncIterator[Agent]:
        """Every agent that matches, page after page. `state` is online, away or offline."""
        cursor: str | None = None
        while True:
            params: dict[str, str | int] = {"limit": PAGE}
            if selector:
                params["selector"] = selector
            if state:
                params["state"] = state
            if cursor is not None:
                params["cursor"] = cursor
            page = await self._get("/v1/agents", _Page, params)
            for one in page.agents:
                yield one
            # A cursor that does not change would never end.
            if page.cursor in (None, "", cursor):
                return
            cursor = page.cursor

    async def count_agents(self, selector: str = "", state: str = "") -> int:
        """How many agents match, as `agents` takes it."""
        params = {"limit": "1", "count": "true", "selector": selector, "state": state}
        page = await self._get("/v1/agents", _Page, {name: value for name, value in params.items() if value})
        return page.count or 0

    async def agent(self, agent: str) -> AgentDetail:
        """Raises AgentUnknown."""
        return await self._get(_path(agent), AgentDetail)

    async def link(self, agent: str) -> Link:
        """The state of its link. Raises AgentOffline if it has none, Unavailable if its node does not answer."""
        return await self._get(f"{_path(agent)}/link", Link)

    async def worst(self, by: str = "rtt", limit: int = 20) -> Ranking:
        """The worst links of the fleet by a measure: a p99 (rtt, deliver, ack, first_byte, run, store) or a number
        (open, failed, reconnects)."""
        return await self._get("/v1/links", Ranking, {"by": by, "limit": limit})

    async def nodes(self, state: str = "") -> list[NodeInfo]:
        """All nodes of the fleet, ordered by name. `state` is serving, draining, stopped or lost."""
        return (await self._get("/v1/nodes", _Nodes, {"state": state} if state else None)).nodes

    async def disconnect(self, agent: str) -> None:
        """Close its link; it connects again. Raises AgentOffline."""
        await self._transport.call(Request("DELETE", f"{_path(agent)}/link"))

    async def delete(self, agent: str) -> Deleted:
        """Delete an agent that has left. Raises AgentOnline while it has a link."""
        return await self._transport.ask(Request("DELETE", _path(agent)), Deleted)

    async def label(self, agent: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set labels, or remove those that are None; returns all labels of the agent."""
        body = msgspec.json.encode({"labels": dict(changes)})
        request = Request("PATCH", _path(agent), None, {"Content-Type": "application/json"}, body)
        return (await self._transport.ask(request, _Labels)).labels

    async def store_content(self, data: bytes) -> str:
        """Store octets once for any number of commands, at most 1 MiB; returns their digest, which `content` takes."""
        digest = hashlib.sha256(data).hexdigest()
        headers = {"Content-Type": "application/octet-stream"}
        await self._transport.call(Request("PUT", f"/v1/contents/{digest}", None, headers, data))
        return digest

    def command(
        self,
        agent: str,
        method: str,
        payload: object = None,
        *,
        deadline: float = 60.0,
        queue: float | None = None,
        lane: Literal["interactive", "bulk"] = "interactive",
        retain: Literal["all", "window"] = "all",
        retry: Literal["never", "safe"] = "never",
        key: str | None = None,
        takes_input: bool = False,
        content: str = "",
        unchecked: bool = False,
    ) -> Command:
        """A command, which `async with` posts. `payload` is any JSON; docs/api.md describes the other arguments.

        `queue`: the maximum number of seconds to wait for an agent that is offline. `key` is the Idempotency-Key: two
        posts with the same key are one command. Every command has a key of its own unless you pass one. A signed
        command has an id in place of a key, and gets input only if `takes_input` says so: the signature covers that.
        `content` is what `store_content` has returned, for a method that asks for it, such as `script`.
        """
        octets = msgspec.json.encode({} if payload is None else payload)
        order: dict[str, object] = {
            "agent": check_agent_id(agent),
            "method": method,
            "payload": msgspec.Raw(octets),
            "deadline": deadline,
            "lane": lane,
            "on_offline": "fail" if queue is None else {"queue": queue},
        }
        extra = {"retain": retain, "retry": retry, "content": content, "unchecked": unchecked}
        order |= {name: value for name, value in extra.items() if value not in ("all", "never", "", False)}
        headers = {"Accept": NDJSON, "Content-Type": "application/json"}
        if self._signer is not None:
            if key is not None:
                raise InvalidRequest("a signed command has no Idempotency-Key: its id takes that place", field="key")
            signed = SignedCommand(self._signer, agent, takes_input)
            valid = deadline + (queue or 0.0)

            async def sign() -> Request:
                signature = await signed.sign(method, octets, lane, retry, valid)
                body = {**order, "id": signed.id, "signature": signature}
                return Request("POST", "/v1/commands", self._transport.approved, headers, msgspec.json.encode(body))

            return Command(self._transport, sign, signed=signed)
        headers["Idempotency-Key"] = key or secrets.token_hex(16)
        post = Request("POST", "/v1/commands", self._transport.approved, headers, msgspec.json.encode(order))
        return Command(self._transport, post)

    def events(
        self,
        *,
        agent: str = "",
        type: str = "",
        selector: str = "",
        after: str = "",
        since: int | None = None,
        follow: bool = True,
        group: str = "",
        window: int = 100,
        ack_within: int = 60,
    ) -> EventReader:
        """The events of agents, to iterate over: those after the offset `after`, of the last `since` seconds, or all
        that are kept; with `follow`, those that come later too. `type` may end with `*`.

        All readers of a `group` share its events. Pass the offset of each to `event_groups.acknowledge` within
        `ack_within` seconds, or another reader gets it; one that has `window` of them gets no more.
        """
        if agent:
            check_agent_id(agent)
        query: dict[str, str | int] = {"agent": agent, "type": type, "selector": selector}
        if group:
            query |= {"group": group, "window": window, "ack_within": ack_within}
        return EventReader(self._transport, query, after=after, since=since, follow=follow)

    def attach(self, command: str, start: int = 0, follow: bool = True) -> Command:
        """A command that was posted before, with its results from offset `start` on; without `follow`, only those that
        are stored now.
        """
        return Command(self._transport, None, check_command_id(command), start, follow)

    async def cancel(self, command: str) -> str:
        """Cancel a command; returns its current state. Cancelling a command that is over changes nothing."""
        path = f"/v1/commands/{check_command_id(command)}"
        return (await self._transport.ask(Request("DELETE", path), _Cancelled)).state

    async def whoami(self) -> Identity:
        """Who this client's token belongs to, and which roles it has."""
        return await self._get("/v1/auth/whoami", Identity)

    async def can_i(self, *, method: str = "", verb: str = "", agent: str = "", selector: str = "") -> Permission:
        """Whether the caller may run `method`, or use `verb`: on an agent, on all that match a selector, or on all."""
        given = {"method": method, "verb": verb, "agent": agent, "selector": selector}
        return await self._get("/v1/auth/can-i", Permission, {name: value for name, value in given.items() if value})

    async def methods(self) -> list[MethodInfo]:
        """The library of methods, ordered by name."""
        return (await self._get("/v1/methods", _Methods)).methods

    async def tenants(self) -> list[TenantInfo]:
        """All tenants with what each has of its quotas, for the administrator of all of them."""
        return (await self._get("/v1/tenants", _Tenants)).tenants

    async def _get(self, path: str, kind: type[T], params: Mapping[str, str | int] | None = None) -> T:
        return await self._transport.ask(Request("GET", path, params), kind)


def _path(agent: str) -> str:
    """The path of an agent's resource. The id is checked, since it becomes a part of a URL."""
    return f"/v1/agents/{check_agent_id(agent)}"
