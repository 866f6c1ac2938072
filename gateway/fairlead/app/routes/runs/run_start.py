"""The handlers that begin a run: of a list of agents, of a selection, or of what failed in another run.

They check bodies and rights and call `routing.runs`. A selection has only agents that the caller may see and run the
method on; a list with another one is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from fairlead.app.access.approval_gate import ApprovalGate, Intent, Passage
from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api.body_fingerprint import fingerprint
from fairlead.app.api.request_body import decoded, read_body
from fairlead.app.api.runs import run_schemas
from fairlead.app.routes.commands import key_of, posted_key
from fairlead.app.routes.runs.run_body import (
    arranged,
    body_digest,
    check_arguments,
    check_body,
    named_targets,
    run_terms,
    traceparent_of,
    without_payload,
)
from fairlead.app.routes.runs.signed_run import signed_by
from fairlead.authorization.approval_rule import ApprovalRule
from fairlead.authorization.policy import Verb
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest, Unavailable
from fairlead.fleet import selector
from fairlead.fleet.contents.content_store import digest_of
from fairlead.fleet.runs.run_record import RunTerms
from fairlead.fleet.schema import AgentRow
from fairlead.node import Node
from fairlead.routing.runs.batches import spread_order
from fairlead.routing.runs.run_service import PostedRun
from fairlead.routing.runs.selection import Selection, values_of
from fairlead.tenant import local_id, qualified

BODY_LIMIT = 2 << 20
"""A list of 10,000 of the longest ids, and the largest payload."""
SELECTION_TIME = 25.0
"""Seconds to select the targets: shorter than the timeouts of callers and proxies."""

_new_run = msgspec.json.Decoder(run_schemas.NewRun)
_retried = msgspec.json.Decoder(run_schemas.RetriedRun)
_encode = msgspec.json.Encoder().encode


class _Start(NamedTuple):
    """A run that is about to begin. `key` is its Idempotency-Key, and `body_digest` what that is bound to."""

    terms: RunTerms
    payload: bytes
    agents: Sequence[str]
    key: str
    body_digest: str
    undecided: int = 0
    chosen: str = ""
    """The id of a signed run."""


class RunStartRoutes:
    def __init__(self, node: Node, auditor: Auditor, gate: ApprovalGate) -> None:
        self._auditor = auditor
        self._contents = node.routing.contents
        self._gate = gate
        self._runs = node.routing.runs
        self._data_check = node.data_check
        self._authorizer = node.authorizer

    def handlers(self) -> dict[str, Callable[[Request], Awaitable[ASGIApp]]]:
        """The handler of each operation that begins a run."""
        return {"postRun": self.post, "retryRun": self.retry}

    async def post(self, request: Request) -> Response:
        """Begin a run, or with `dry_run` only say which agents it would have."""
        raw = await read_body(request, BODY_LIMIT)
        subject = caller(request)
        body = decoded(_new_run, raw)
        check_body(body)
        self._authorizer.require_still(subject, (Verb.RUN,))
        payload, key = bytes(body.payload), posted_key(request)
        chosen, signature = signed_by(body, key, self._runs.service.now)
        given = body.selector if isinstance(body.selector, str) else f"{len(body.agents or ())} agents"
        self._auditor.note(request, payload, method=body.method, selector=given)
        selection, rules = await self._select(subject, body)
        if not body.dry_run:  # which is about agents, and mostly has no payload
            check_arguments(body)
        agents, ends = arranged(selection, body.batches)
        if body.spread:
            agents = spread_order(agents)
        if body.dry_run:
            await self._auditor.allow(request, len(selection.agents))
            dry = run_schemas.DryRun(len(agents), selection.undecided, [local_id(agent) for agent in agents])
            return Response(_encode(dry), media_type="application/json")
        if not selection.agents and not body.late:
            raise InvalidRequest("no agent matches the selector, or none that the caller may see", field="selector")
        terms = run_terms(body, subject, request, self._runs.service.now, ends, signature)
        digest = body_digest(body, payload) if key else ""
        start = _Start(terms, payload, agents, key, digest, selection.undecided, chosen)
        return await self._begin(request, rules, start, without_payload(body))

    async def retry(self, request: Request) -> Response:
        """Begin a run of the targets of another that ended in some states, with its method, payload and pace."""
        raw = await read_body(request, BODY_LIMIT)
        subject = caller(request)
        body = decoded(_retried, raw)
        self._authorizer.require_still(subject, (Verb.RUN,))
        run, key = request.path_params["run"], posted_key(request)
        row = await self._runs.results.look_up(run, subject.tenant)
        self._authorizer.require_run(subject, Verb.RESULTS, row.terms.subject, row.terms.method)
        self._auditor.note(request, method=row.terms.method, selector=f"the targets of {run}")
        if row.terms.signature:
            raise InvalidRequest(
                f"run {run} was signed, and its signature is for its own commands: sign a new run of the agents that "
                "are to be tried again",
                field="run",
            )
        payload, agents = await self._runs.service.retried(row, body.states)
        rules: list[ApprovalRule] = []
        if not subject.administrator:
            rows = await self._runs.selection.rows(agents)
            self._authorizer.require_run_on(subject, row.terms.method, agents, rows)
            rules = self._authorizer.approval_rules_on(subject, row.terms.method, agents, rows)
        now = self._runs.service.now
        terms = msgspec.structs.replace(
            row.terms, selector="", subject=subject.identity, traceparent=traceparent_of(request), created=now,
            expires=now + row.terms.expires - row.terms.created, retry_of=run, late=False, poster=None,
            pace=msgspec.structs.replace(row.terms.pace, batches=()),
        )  # fmt: skip
        digest = fingerprint((run.encode(), msgspec.json.encode(body)), b"") if key else ""
        return await self._begin(
            request, rules, _Start(terms, payload, agents, key, digest), _encode(["retry", run, body.states])
        )

    async def _begin(
        self, request: Request, rules: Sequence[ApprovalRule], start: _Start, said: bytes
    ) -> Response:  # fmt: skip
        """Begin the run if nobody has to approve it, or somebody has. `said` is what the caller has posted: an approval
        is for that, and for exactly these agents."""
        agents, subject = start.agents, caller(request)
        self._auditor.note(request, start.payload, content=digest_of(start.terms.content))
        target = start.terms.selector or named_targets(agents)
        intent = Intent(
            "run", start.terms.method, target, len(agents), start.payload, said + _encode(sorted(agents)),
            digest_of(start.terms.content), len(agents) if start.terms.late else 0,
        )  # fmt: skip
        passage = await self._gate.enter(request, rules, intent)

        async def permit(run: str) -> None:
            self._authorizer.require_still(subject, (Verb.RUN,))  # reading the agents may have taken half a minute
            self._auditor.note(request, run=run)
            await self._auditor.allow(request, len(agents))
            if passage is not None:
                await self._gate.use(subject, passage, run)

        run, replayed = await self._runs.service.submit(await self._order(subject, start, passage), permit)
        headers = {"location": f"/v1/runs/{run}"}
        targets = len(agents)
        if replayed:
            headers["idempotency-replayed"] = "true"
            targets = (await self._runs.results.look_up(run, caller(request).tenant)).targets
        accepted = run_schemas.AcceptedRun(run, targets, start.undecided, replayed)
        return Response(_encode(accepted), 202, headers, media_type="application/json")

    async def _order(self, subject: Subject, start: _Start, passage: Passage | None) -> PostedRun:
        """What is to begin. Its content is kept for as long as the run may need it."""
        key, bound_to, terms = "", start.body_digest, start.terms
        if passage is not None:
            # The approval takes the place of an Idempotency-Key, so that the same post again is the same run.
            key, bound_to = _digest(f"run approval\0{passage.approval}"), passage.intent.digest
        elif start.key:
            key = _digest(f"run\0{key_of(subject, start.key)}")
        if terms.content:
            life = terms.expires - terms.created
            name = await self._contents.refer(terms.tenant, digest_of(terms.content), life)
            terms = msgspec.structs.replace(terms, content=name)
        return PostedRun(terms, start.payload, start.agents, key, bound_to, start.chosen)

    async def _select(self, subject: Subject, body: run_schemas.NewRun) -> tuple[Selection, list[ApprovalRule]]:
        """The targets, and the rules because of which the run needs an approval."""
        selection = self._runs.selection
        key = selector.parse_key(body.batches.by, "batches.by") if body.batches and body.batches.by else None
        if isinstance(body.agents, list):
            agents = [qualified(subject.tenant, agent) for agent in dict.fromkeys(body.agents)]
            rows = await selection.rows(agents) if key is not None or not subject.administrator else []
            if not subject.administrator:
                self._authorizer.require_run_on(subject, body.method, agents, rows)
            if key is not None:  # the order of the targets tells what the agents have there
                for row in rows:
                    self._authorizer.require_on_row(subject, Verb.VIEW, row)
            found = Selection(agents, 0, values_of(key, rows))
            return found, self._authorizer.approval_rules_on(subject, body.method, agents, rows)
        assert isinstance(body.selector, str)
        terms = selector.parse(body.selector)
        rules: dict[ApprovalRule, None] = {}

        def allowed(row: AgentRow) -> bool:
            if body.late and not self._runs.late.is_linked(row):
                return False
            may = self._authorizer.allows_on_row(subject, Verb.VIEW, row) and self._authorizer.allows_run_on_row(
                subject, body.method, row
            )
            if may:
                marked = self._authorizer.approval_rules_on(subject, body.method, (row.agent,), (row,))
                rules.update(dict.fromkeys(marked))
            return may

        try:
            async with asyncio.timeout(SELECTION_TIME):
                checked = None if subject.administrator and not body.late else allowed
                found = await selection.select(subject.tenant, terms, checked, key)
        except TimeoutError as e:
            raise Unavailable(
                f"the agents could not be selected within {SELECTION_TIME:g} s: this node or Redis is busy; try again "
                "later, or list the agents"
            ) from e
        await self._data_check.check_index()
        return found, list(rules)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
