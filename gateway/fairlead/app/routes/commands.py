"""The handlers of `/v1/commands`: post a command, look it up, read its results, cancel it, send input to it.

They check bodies and parameters and call `routing`. Every error names the field at fault and its limit.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from functools import partial

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from fairlead.app.access.approval_gate import ApprovalGate, Intent, Passage
from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api import schemas
from fairlead.app.api.body_fingerprint import fingerprint
from fairlead.app.api.headers import find_header
from fairlead.app.api.request_body import decoded, read_body
from fairlead.app.api.schemas import iso
from fairlead.app.routes.result_stream import LINES, ResultStream, end_of, opening, wanted
from fairlead.app.routes.stream_guard import watched
from fairlead.authorization.policy import Access, Verb
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest
from fairlead.fleet.command_record import CommandRecord, OwnedCommand
from fairlead.fleet.schema import TargetState
from fairlead.methods.library import check_content, check_input, check_payload
from fairlead.node import Node
from fairlead.routing.commands.request import CommandRequest, DispatchedCommand
from fairlead.routing.delivery.terminal_recorder import METHODS
from fairlead.shards import SHARDS, agent_shard, of_agent
from fairlead.telemetry.request_trace import RequestTrace
from fairlead.tenant import local_id, qualified
from fairlead.wire.ids import check_agent_id
from fairlead.wire.messages import CHUNK_LIMIT

BODY_LIMIT = 768 << 10
PAYLOAD_LIMIT = 512 << 10
"""Bytes. With base64 and its envelope, a payload of this size still fits into one message of 1 MiB in the JSON
encoding."""
KEY_LIMIT = 255
ASIDE_BYTES = 32 << 10
"""Bytes. The fingerprint of a larger payload is computed in a thread, because one with many small members takes 0.1
s."""

_new_command = msgspec.json.Decoder(schemas.NewCommand)
_encode = msgspec.json.Encoder().encode


class CommandRoutes:
    def __init__(self, node: Node, auditor: Auditor, gate: ApprovalGate) -> None:
        self._auditor = auditor
        self._gate = gate
        self._dispatch = node.routing.dispatch
        self._inputs = node.routing.inputs
        self._contents = node.routing.contents
        self._results = node.routing.results
        self._terminals = node.routing.terminals
        self._tracing = node.tracing
        self._authorizer = node.authorizer

    async def post(self, request: Request) -> ASGIApp:
        """Post a command: the answer is 202 with its id, or the stream of its results if the caller accepts one."""
        request_trace = RequestTrace(self._tracing) if self._tracing.on else None
        raw = await read_body(request, BODY_LIMIT)
        form = wanted(request)
        opens = opening(request) if form is not None else 0.0
        subject = caller(request)
        order, unchecked = await _order(raw, request, subject)
        self._authorizer.require_still(subject, (Verb.RUN,))
        if self._auditor.on:
            self._auditor.note(
                request, order.payload, method=order.method, agent=local_id(order.agent), content=order.content
            )
        await self._authorizer.require(subject, Access(Verb.RUN, order.method), order.agent)
        if order.content:  # whether or not its arguments are checked: the audit log has this digest
            check_content(order.method, order.payload, order.content)
        if not unchecked:
            check_payload(order.method, order.payload)
            check_input(order.method, order.payload, content=bool(order.content), takes_input=True)
        rules = await self._authorizer.approval_rules(subject, order.method, order.agent)
        passage = None
        if rules or request.scope["query_string"]:
            passage = await self._gate.enter(request, rules, _intent(order))
        if passage is not None:
            order = _approved(order, passage)
        if order.content:
            order = await self._with_content(subject, order)
        permit = partial(self._permit, request, passage) if self._auditor.on or passage is not None else None
        accepted = await self._dispatch.submit(order, form is not None, request_trace, permit)
        self._authorizer.remember_command(subject, accepted.id, order.method, order.agent)
        recorded = self._terminals.on and order.method in METHODS
        head = schemas.AcceptedCommand(
            accepted.id, accepted.state, accepted.presence, accepted.why, recorded, accepted.replayed
        )
        if form is not None:
            pages = watched(
                self._authorizer, subject, Verb.RESULTS, accepted.id,
                lambda poll: self._results.read(
                    accepted.id, 0, follow=True, follower=accepted.follower, opens=opens, poll=poll
                ),
            )  # fmt: skip
            return ResultStream(
                request, form.replayed() if accepted.replayed else form, head, pages, request_trace, opens
            )
        return _accepted(accepted, _encode(head))

    async def _with_content(self, subject: Subject, order: CommandRequest) -> CommandRequest:
        """The command with the name of its content, which is kept for as long as the command may ask for it."""
        name = await self._contents.refer(subject.tenant, order.content, order.deadline + (order.queue or 0))
        return msgspec.structs.replace(order, content=name)

    async def _permit(self, request: Request, passage: Passage | None, command: str) -> None:
        """Record that the command is allowed, and use its approval, before anything of it is written."""
        self._auditor.note(request, command=command)
        await self._auditor.allow(request)
        if passage is not None:
            await self._gate.use(caller(request), passage, command)

    async def get(self, request: Request) -> Response:
        found = await self._dispatch.look_up(request.path_params["command"])
        owner = OwnedCommand(found.subject, found.method, found.agent)
        await self._authorizer.require_owned(caller(request), Verb.RESULTS, owner)
        await self._auditor.allow(request)
        return Response(_encode(describe(found)), media_type="application/json")

    async def results(self, request: Request) -> ASGIApp:
        """Stream the results from offset `from` on; with `follow`, until the command ends."""
        command, subject = request.path_params["command"], caller(request)
        await self._authorizer.require_command(subject, Verb.RESULTS, command)
        await self._auditor.allow(request)
        offset = whole_number(request, "from", 0, 1 << 53)
        last = find_header(request, b"last-event-id")
        if last is not None:
            after = number("Last-Event-ID", last, (1 << 53) - 1) + 1
            offset = offset if "from" in request.query_params else after
        follow = flag(request, "follow")
        await self._results.check(command, offset, follow)
        pages = watched(
            self._authorizer, subject, Verb.RESULTS, command,
            lambda poll: self._results.read(command, offset, follow, poll=poll),
        )  # fmt: skip
        return ResultStream(request, wanted(request) or LINES, None, pages)

    async def delete(self, request: Request) -> Response:
        """Cancel a command: the answer is 202 with its current state. Cancelling a command that has ended changes
        nothing."""
        command = request.path_params["command"]
        await self._authorizer.require_command(caller(request), Verb.CANCEL, command)
        await self._auditor.allow(request)
        state = await self._dispatch.cancel(command)
        return Response(_encode(schemas.CancelledCommand(command, state)), 202, media_type="application/json")

    async def input(self, request: Request) -> Response:
        """Add chunk `n` of the input, and the end of the input if `end` is set."""
        command = request.path_params["command"]
        n, end = whole_number(request, "n", 0, 1 << 31), flag(request, "end")
        subject = caller(request)
        await self._authorizer.require_input(subject, command)
        payload = await read_body(request, CHUNK_LIMIT)
        self._authorizer.require_still(subject, (Verb.RUN, Verb.INPUT))
        await self._authorizer.require_input(subject, command)
        self._auditor.note(request, payload, detail=f"n={n}")
        await self._auditor.allow(request)
        if payload or not end:
            await self._inputs.add(command, n, payload, False)
            n += 1
        if end:
            await self._inputs.add(command, n, b"", True)
        return Response(status_code=204)


async def _order(raw: bytes, request: Request, subject: Subject) -> tuple[CommandRequest, bool]:
    """The command that is posted, and whether its payload is passed on unchecked."""
    body = decoded(_new_command, raw)
    payload = bytes(body.payload)
    if len(payload) > PAYLOAD_LIMIT:
        raise InvalidRequest(f"payload of {len(payload)} bytes exceeds the maximum of {PAYLOAD_LIMIT}", field="payload")
    key = posted_key(request)
    command, signature = _signed(body, key)
    deadline = int(body.deadline * 1000)
    queue = int(body.on_offline.queue * 1000) if isinstance(body.on_offline, schemas.Queue) else None
    content = "" if body.content is UNSET else body.content
    body_digest = ""
    if key:
        terms = (
            body.agent,
            body.method,
            deadline,
            body.lane,
            queue,
            body.retry,
            body.retain,
            *([content] if content else []),
        )
        if len(payload) > ASIDE_BYTES:
            body_digest = await asyncio.to_thread(fingerprint, terms, payload)
        else:
            body_digest = fingerprint(terms, payload)
    order = CommandRequest(
        agent=qualified(subject.tenant, check_agent_id(body.agent)),
        method=body.method,
        payload=payload,
        deadline=deadline,
        lane=body.lane,
        queue=queue,
        retry=body.retry,
        retain=body.retain,
        traceparent=(find_header(request, b"traceparent") or "")[:64],
        key_digest=hashlib.sha256(f"{key_of(subject, key)}\0{body.agent}".encode()).hexdigest() if key else "",
        body_digest=body_digest,
        subject=subject.identity,
        id=command,
        signature=signature,
        content=content,
    )
    return order, body.unchecked is True


def _intent(order: CommandRequest) -> Intent:
    """What of a command is approved: everything but its id and signature, which are made anew with each attempt."""
    terms = (
        order.deadline,
        order.lane,
        order.queue,
        order.retry,
        order.retain,
        *([order.content] if order.content else []),
    )
    said = _encode([order.agent, *terms])
    return Intent("command", order.method, local_id(order.agent), 1, order.payload, said, order.content)


def _approved(order: CommandRequest, passage: Passage) -> CommandRequest:
    """The command with its approval in place of an Idempotency-Key, so that the same post again is the same command. A
    signed command is recognised by its id."""
    if order.id:
        return order
    key = hashlib.sha256(f"approval\0{passage.approval}".encode()).hexdigest()
    return msgspec.structs.replace(order, key_digest=key, body_digest=passage.intent.digest)


def _signed(body: schemas.NewCommand, key: str) -> tuple[str, bytes]:
    """The id and the signature of a signed command; both are empty for any other."""
    if body.id is UNSET and body.signature is UNSET:
        return "", b""
    if body.id is UNSET or body.signature is UNSET:
        missing = "id" if body.id is UNSET else "signature"
        raise InvalidRequest(
            "a signed command has an id and a signature: expected both, or none of them", field=missing
        )
    if key:
        raise InvalidRequest(
            "a signed command is recognised by its id: expected no Idempotency-Key beside it", field="Idempotency-Key"
        )
    if body.id != (expected := of_agent(body.id, body.agent)):
        raise InvalidRequest(
            f"id {body.id} is not one of a signed command of this agent: expected {expected}, or another UUIDv4 whose "
            f"17th and 18th character, as a number modulo {SHARDS}, are {agent_shard(body.agent)}",
            field="id",
        )
    return body.id, base64.b64decode(body.signature)


def posted_key(request: Request) -> str:
    """The Idempotency-Key of a request, "" if it has none. Raises InvalidRequest."""
    key = find_header(request, b"idempotency-key") or ""
    if len(key) > KEY_LIMIT:
        raise InvalidRequest(
            f"Idempotency-Key of {len(key)} characters exceeds the maximum of {KEY_LIMIT}", field="Idempotency-Key"
        )
    return key


def key_of(subject: Subject, key: str) -> str:
    """An Idempotency-Key is the caller's own, in one tenant: nobody gets the command of another with the same key."""
    return qualified(subject.tenant, key if subject.administrator else f"{subject.identity}\0{key}")


def _accepted(accepted: DispatchedCommand, body: bytes) -> Response:
    headers = {"location": f"/v1/commands/{accepted.id}"}
    if accepted.replayed:
        headers["idempotency-replayed"] = "true"
    return Response(body, 202, headers, media_type="application/json")


def describe(command: CommandRecord) -> schemas.Command:
    """The body of `GET /v1/commands/{command}`."""
    counts: dict[TargetState, int] = {}
    targets = []
    for target in command.targets:
        counts[target.state] = counts.get(target.state, 0) + 1
        end = end_of(command, target) if target.state.over else None
        targets.append(schemas.Target(local_id(target.agent), target.state, target.attempt, target.next, end))
    return schemas.Command(
        command.id, command.method, command.lane, command.subject or None,
        targets[0].state if len(targets) == 1 else None,
        iso(command.created), iso(command.expires), bool(command.cancel_asked), command.seq, command.truncated,
        iso(command.dropped_at), counts, targets,
    )  # fmt: skip


def whole_number(request: Request, name: str, default: int, most: int, least: int = 0) -> int:
    """A query parameter that is a whole number from `least` to `most`. Raises InvalidRequest."""
    given = request.query_params.get(name)
    return default if given is None else number(name, given, most, least)


def number(name: str, given: str, most: int, least: int = 0) -> int:
    legal = given.isascii() and given.isdigit() and len(given) <= 20
    if not legal or not least <= int(given) <= most:
        raise InvalidRequest(
            f"invalid {name} {given[:32]!r}: expected a whole number from {least} to {most}", field=name
        )
    return int(given)


def flag(request: Request, name: str, default: str = "false") -> bool:
    given = request.query_params.get(name, default)
    if given not in ("true", "false"):
        raise InvalidRequest(f"invalid {name} {given[:32]!r}: expected true or false", field=name)
    return given == "true"
