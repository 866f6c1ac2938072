"""The handlers of `/v1/runs` for runs that were posted: list them, look at one, follow its results, pause, resume and
cancel it.

They check rights and call `routing.runs`. `run_start` has those that begin a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from fairlead.app.access.approval_gate import ApprovalGate, Intent, Passage
from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api.runs import run_schemas
from fairlead.app.api.schemas import iso
from fairlead.app.routes.commands import flag, whole_number
from fairlead.app.routes.result_stream import wanted
from fairlead.app.routes.runs.run_body import named_targets
from fairlead.app.routes.runs.run_stream import RunStream
from fairlead.authorization.approval_rule import ApprovalRule
from fairlead.authorization.policy import Access, Verb
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest
from fairlead.fleet.contents.content_store import digest_of
from fairlead.fleet.runs.run_record import Pace, RunRow, RunState
from fairlead.node import Node
from fairlead.routing.runs.run_service import NamedGroup
from fairlead.tenant import local_id
from fairlead.wire.ids import check_command_id

GROUPS = 20
PAGE = 100
"""Runs in a page, unless the caller asks for another number; 1,000 at most."""
TARGETS_AT_ONCE = 1_000
"""Targets whose rows are read together when a run is resumed: it may have 100,000."""

_encode = msgspec.json.Encoder().encode


class _Waiting(NamedTuple):
    """The targets of a run that have not started, and the rules because of which they need an approval. `covered` is
    for runs that agents join: how many of its first targets an approval has to cover."""

    agents: list[str]
    rules: list[ApprovalRule]
    covered: int


class RunRoutes:
    def __init__(self, node: Node, auditor: Auditor, gate: ApprovalGate) -> None:
        self._auditor = auditor
        self._gate = gate
        self._runs = node.routing.runs
        self._authorizer = node.authorizer

    def handlers(self) -> dict[str, Callable[[Request], Awaitable[ASGIApp]]]:
        """The handler of each operation but those of `run_start`."""
        return {
            "listRuns": self.list_runs,
            "getRun": self.get,
            "getRunResults": self.results,
            "cancelRun": self.cancel,
            "pauseRun": self.pause,
            "resumeRun": self.resume,
        }

    async def list_runs(self, request: Request) -> Response:
        """One page of the runs that the caller may see, the newest first."""
        query = request.query_params
        limit, state = whole_number(request, "limit", PAGE, 1_000, 1), _state(query.get("state"))
        subject = caller(request)
        before = check_command_id(query["cursor"]) if "cursor" in query else ""

        def shown(row: RunRow) -> bool:
            visible = self._authorizer.allows_run(subject, Verb.RESULTS, row.terms.subject, row.terms.method)
            return visible and state in (None, row.state)

        rows, cursor = await self._runs.results.list_runs(subject.tenant, before, limit, shown)
        await self._auditor.allow(request, len(rows))
        page = run_schemas.RunList([_summary(row) for row in rows], cursor)
        return Response(_encode(page), media_type="application/json")

    async def get(self, request: Request) -> Response:
        row = await self._row(request, Verb.RESULTS)
        await self._auditor.allow(request)
        return await self._described(request, row)

    async def results(self, request: Request) -> ASGIApp:
        """Stream the results from offset `from` on; with `follow`, until the run ends."""
        row, subject = await self._row(request, Verb.RESULTS), caller(request)
        await self._auditor.allow(request)
        offset, follow = whole_number(request, "from", 0, 1 << 53), flag(request, "follow")
        output, progress = flag(request, "output", "true"), flag(request, "progress")
        await self._runs.results.check(row, offset)
        updates = self._runs.results.read(row, offset, follow, with_output=output)

        def check() -> None:
            self._authorizer.check_credential(subject)
            self._authorizer.require_run(subject, Verb.RESULTS, row.terms.subject, row.terms.method)

        async def shows(agents: Sequence[str]) -> list[bool]:
            return await self._shows(subject, row, agents)

        return RunStream(request, wanted(request), row, updates, check, shows, progress=progress)

    async def cancel(self, request: Request) -> Response:
        return await self._ask(request, "cancel")

    async def pause(self, request: Request) -> Response:
        return await self._ask(request, "pause")

    async def resume(self, request: Request) -> Response:
        """What goes on by itself needs no right that was taken away since, and no approval that is asked for since;
        whoever has it go on again needs them."""
        row = await self._row(request, Verb.CANCEL)
        if row.state is not RunState.PAUSED and row.wish != "pause":
            # Nothing is asked for, so that a pause that comes meanwhile is not taken back without them.
            await self._auditor.allow(request)
            return await self._described(request, row, 202)
        return await self._ask(request, "resume", await self._enter_again(request, row))

    async def _enter_again(self, request: Request, row: RunRow) -> Passage | None:
        """The approval that the request names, if what has not started needs one by the rules that hold now, and the
        run has none. Raises PermissionDenied and ApprovalRequired."""
        run, (agents, rules, covered) = self._runs.service, await self._waiting(caller(request), row)
        if not rules or await self._gate.has_approved(request, row.id, rules, covered):
            return None
        target = f"{named_targets(agents)} on which run {row.id} has not started"
        intent = Intent(
            "resume", row.terms.method, target, len(agents), await run.payload(row),
            _encode([row.id, *([covered] if covered else [])]), digest_of(row.terms.content), covered,
        )  # fmt: skip
        self._auditor.note(request, intent.payload, method=row.terms.method, selector=target, content=intent.content)
        return await self._gate.enter(request, rules, intent)

    async def _waiting(self, subject: Subject, row: RunRow) -> _Waiting:
        """Raises PermissionDenied unless the caller may run the method on all targets that have not started, or a rule
        is for everybody's runs."""
        method, authorizer = row.terms.method, self._authorizer
        everybody = authorizer.allows_run(subject, Verb.CANCEL, "", method)
        if everybody and not authorizer.may_need_approval(subject, method):
            return _Waiting([], [], 0)
        places, rules, covered = await self._runs.service.waiting(row), dict[ApprovalRule, None](), 0
        for at in range(0, len(places), TARGETS_AT_ONCE):
            some = places[at : at + TARGETS_AT_ONCE]
            agents = [agent for _, agent in some]
            rows = await self._runs.selection.rows(agents)
            if not everybody:
                authorizer.require_run_on(subject, method, agents, rows)
            found = authorizer.approval_rules_on(subject, method, agents, rows)
            rules.update(dict.fromkeys(found))
            if found and row.terms.late:
                known = {one.agent: (one,) for one in rows}
                covered = 1 + max(
                    place
                    for place, agent in some
                    if authorizer.approval_rules_on(subject, method, (agent,), known.get(agent, ()))
                )
        return _Waiting([agent for _, agent in places], list(rules), covered)

    async def _ask(self, request: Request, wish: str, passage: Passage | None = None) -> Response:
        row = await self._row(request, Verb.CANCEL)
        await self._auditor.allow(request)
        if passage is not None:
            await self._gate.use(caller(request), passage, row.id)
        return await self._described(request, await self._runs.service.ask(row.id, wish), 202)

    async def _row(self, request: Request, verb: Verb) -> RunRow:
        row = await self._runs.results.look_up(request.path_params["run"], caller(request).tenant)
        self._authorizer.require_run(caller(request), verb, row.terms.subject, row.terms.method)
        return row

    async def _shows(self, subject: Subject, row: RunRow, agents: Sequence[str]) -> list[bool]:
        """Whether the caller may see what each agent returned: whoever posted the run may have lost the right since."""
        if subject.administrator or row.terms.subject != subject.identity:
            return [True] * len(agents)
        access = Access(Verb.RUN, row.terms.method)
        decisions = await asyncio.gather(*(self._authorizer.decide(subject, access, agent) for agent in agents))
        return [decision.allowed for decision in decisions]

    async def _described(self, request: Request, row: RunRow, status: int = 200) -> Response:
        terms, summary, subject = row.terms, _summary(row), caller(request)
        outcomes = [await self._outcome(subject, row, group) for group in await self._runs.service.groups(row, GROUPS)]
        document = run_schemas.Run(
            **msgspec.structs.asdict(summary), expires=iso(terms.expires), outcomes=outcomes,
            pace=_pace(terms.pace, row.targets), node=None if row.ended else row.owner.partition("#")[0],
        )  # fmt: skip
        return Response(_encode(document), status, media_type="application/json")

    async def _outcome(self, subject: Subject, row: RunRow, named: NamedGroup) -> run_schemas.RunOutcome:
        """A group of targets, with those of its agents of which the caller may see what they returned."""
        group, shown = named.group, await self._shows(subject, row, named.agents)
        targets = [
            target for target, may in zip(zip(named.agents, named.commands, strict=True), shown, strict=True) if may
        ]
        return run_schemas.RunOutcome(
            group.state, group.code or None, group.digest or None if all(shown) else None, group.count,
            [local_id(agent) for agent, _ in targets], [command for _, command in targets],
        )  # fmt: skip


def _summary(row: RunRow) -> run_schemas.RunSummary:
    terms = row.terms
    return run_schemas.RunSummary(
        row.id, terms.method, terms.subject, terms.selector or None, terms.retry_of or None, row.state,
        row.reason or None, iso(terms.created), iso(row.ended), terms.late, row.targets,
        {state: count for state, count in row.counts.items() if count},
    )  # fmt: skip


def _pace(pace: Pace, targets: int) -> run_schemas.RunPace:
    count = run_schemas.FailureCount(pace.abort_count) if pace.abort_count else None
    share = run_schemas.FailureShare(pace.abort_share, pace.abort_minimum) if pace.abort_minimum else None
    batches = [end - start for start, end in pairwise((0, *pace.batches, targets))]
    return run_schemas.RunPace(pace.concurrency, pace.ramp, pace.canary, count, share, batches)


def _state(text: str | None) -> RunState | None:
    if text is None:
        return None
    try:
        return RunState(text)
    except ValueError as e:
        raise InvalidRequest(
            f"invalid state {text[:32]!r}: expected one of {', '.join(RunState)}", field="state"
        ) from e
