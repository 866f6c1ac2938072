"""The handlers of `/v1/runs`: begin a run, look at it, follow its results, pause, resume and cancel it.

They check bodies and rights and call `routing.runs`. A selection has only agents that the caller may see and run the
method on; a list with another one is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api.body_fingerprint import fingerprint
from fairlead.app.api.headers import find_header
from fairlead.app.api.request_body import decoded, read_body
from fairlead.app.api.runs import run_schemas
from fairlead.app.api.schemas import iso
from fairlead.app.routes.commands import PAYLOAD_LIMIT, flag, key_of, posted_key, whole_number
from fairlead.app.routes.result_stream import wanted
from fairlead.app.routes.run_stream import RunStream
from fairlead.authorization.policy import EVERY, Access, Verb
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest, Unavailable
from fairlead.fleet import selector
from fairlead.fleet.runs.run_record import Pace, RunRow, RunTerms
from fairlead.node import Node
from fairlead.routing.runs.selection import Selection
from fairlead.wire.ids import check_command_id

BODY_LIMIT = 2 << 20
"""A list of 10,000 of the longest ids, and the largest payload."""
SELECTION_TIME = 25.0
"""Seconds to select the targets: shorter than the timeouts of callers and proxies."""
GROUPS = 20

_new_run = msgspec.json.Decoder(run_schemas.NewRun)
_encode = msgspec.json.Encoder().encode


class RunRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._runs = node.routing.runs
        self._data_check = node.data_check
        self._authorizer = node.authorizer

    def handlers(self) -> dict[str, Callable[[Request], Awaitable[ASGIApp]]]:
        """The handler of each operation."""
        return {
            "postRun": self.post,
            "getRun": self.get,
            "getRunResults": self.results,
            "cancelRun": self.cancel,
            "pauseRun": self.pause,
            "resumeRun": self.resume,
        }

    async def post(self, request: Request) -> Response:
        """Begin a run, or with `dry_run` only say which agents it would have."""
        raw = await read_body(request, BODY_LIMIT)
        subject = caller(request)
        body = decoded(_new_run, raw)
        _check(body)
        self._authorizer.require_still(subject, (Verb.RUN,))
        payload, key = bytes(body.payload), posted_key(request)
        given = body.selector if isinstance(body.selector, str) else f"{len(body.agents or ())} agents"
        self._auditor.note(request, payload, method=body.method, selector=given)
        selection = await self._select(subject, body)
        if body.dry_run:
            await self._auditor.allow(request, len(selection.agents))
            dry = run_schemas.DryRun(len(selection.agents), selection.undecided, selection.agents)
            return Response(_encode(dry), media_type="application/json")
        if not selection.agents:
            raise InvalidRequest("no agent matches the selector, or none that the caller may see", field="selector")
        await self._auditor.allow(request, len(selection.agents))
        run, replayed = await self._runs.service.submit(
            _terms(body, subject, request, self._runs.service.now), payload, selection.agents,
            hashlib.sha256(f"run\0{key_of(subject, key)}".encode()).hexdigest() if key else "",
            _fingerprint(body, payload) if key else "",
        )  # fmt: skip
        headers = {"location": f"/v1/runs/{run}"}
        targets, undecided = len(selection.agents), selection.undecided
        if replayed:
            headers["idempotency-replayed"] = "true"
            targets = (await self._runs.results.look_up(run)).targets
        accepted = run_schemas.AcceptedRun(run, targets, undecided)
        return Response(_encode(accepted), 202, headers, media_type="application/json")

    async def get(self, request: Request) -> Response:
        row = await self._row(request, Verb.RESULTS)
        await self._auditor.allow(request)
        return await self._described(row)

    async def results(self, request: Request) -> ASGIApp:
        """Stream the results from offset `from` on; with `follow`, until the run ends."""
        row, subject = await self._row(request, Verb.RESULTS), caller(request)
        await self._auditor.allow(request)
        offset, follow = whole_number(request, "from", 0, 1 << 53), flag(request, "follow")
        output, progress = flag(request, "output", "true"), flag(request, "progress")
        await self._runs.results.check(row.id, offset)
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
        return await self._ask(request, "resume")

    async def _ask(self, request: Request, wish: str) -> Response:
        row = await self._row(request, Verb.CANCEL)
        await self._auditor.allow(request)
        return await self._described(await self._runs.service.ask(row.id, wish), 202)

    async def _row(self, request: Request, verb: Verb) -> RunRow:
        row = await self._runs.results.look_up(check_command_id(request.path_params["run"]))
        self._authorizer.require_run(caller(request), verb, row.terms.subject, row.terms.method)
        return row

    async def _select(self, subject: Subject, body: run_schemas.NewRun) -> Selection:
        selection = self._runs.selection
        if isinstance(body.agents, list):
            agents = list(dict.fromkeys(body.agents))
            if not subject.administrator:
                self._authorizer.require_run_on(subject, body.method, agents, await selection.rows(agents))
            return Selection(agents)
        assert isinstance(body.selector, str)
        terms = selector.Selector(()) if body.selector.strip() == EVERY else selector.parse(body.selector)
        allowed = None
        if not subject.administrator:
            allowed = lambda row: (  # noqa: E731  # it is passed on, and named nowhere else
                self._authorizer.allows_on_row(subject, Verb.VIEW, row)
                and self._authorizer.allows_run_on_row(subject, body.method, row)
            )
        try:
            async with asyncio.timeout(SELECTION_TIME):
                found = await selection.select(terms, allowed)
        except TimeoutError as e:
            raise Unavailable(
                f"the agents could not be selected within {SELECTION_TIME:g} s: this node or Redis is busy; try again "
                "later, or list the agents"
            ) from e
        await self._data_check.check_index()
        return found

    async def _shows(self, subject: Subject, row: RunRow, agents: Sequence[str]) -> list[bool]:
        """Whether the caller may see what each agent returned: whoever posted the run may have lost the right since."""
        if subject.administrator or row.terms.subject != subject.identity:
            return [True] * len(agents)
        access = Access(Verb.RUN, row.terms.method)
        decisions = await asyncio.gather(*(self._authorizer.decide(subject, access, agent) for agent in agents))
        return [decision.allowed for decision in decisions]

    async def _described(self, row: RunRow, status: int = 200) -> Response:
        terms, pace = row.terms, row.terms.pace
        count = run_schemas.FailureCount(pace.abort_count) if pace.abort_count else None
        share = run_schemas.FailureShare(pace.abort_share, pace.abort_minimum) if pace.abort_minimum else None
        outcomes = [
            run_schemas.RunOutcome(
                one.group.state, one.group.code or None, one.group.digest or None, one.group.count, one.agents,
                one.commands,
            )
            for one in await self._runs.service.groups(row, GROUPS)
        ]  # fmt: skip
        document = run_schemas.Run(
            row.id, terms.method, terms.subject, terms.selector or None, row.state, row.reason or None,
            iso(terms.created), iso(terms.expires), iso(row.ended), row.targets,
            {state: count for state, count in row.counts.items() if count}, outcomes,
            run_schemas.RunPace(pace.concurrency, pace.ramp, pace.canary, count, share),
            None if row.ended else row.owner.partition("#")[0],
        )  # fmt: skip
        return Response(_encode(document), status, media_type="application/json")


def _check(body: run_schemas.NewRun) -> None:
    if (body.agents is UNSET) == (body.selector is UNSET):
        raise InvalidRequest("expected either agents or a selector, and not both", field="agents")
    if len(bytes(body.payload)) > PAYLOAD_LIMIT:
        raise InvalidRequest(
            f"payload of {len(bytes(body.payload))} bytes exceeds the maximum of {PAYLOAD_LIMIT}", field="payload"
        )


def _fingerprint(body: run_schemas.NewRun, payload: bytes) -> str:
    """Equal for two bodies with the same meaning."""
    return fingerprint((msgspec.json.encode(msgspec.structs.replace(body, payload=msgspec.Raw(b"0"))),), payload)


def _terms(body: run_schemas.NewRun, subject: Subject, request: Request, now: int) -> RunTerms:
    above, after = body.abort_above, body.abort_after
    pace = Pace(
        body.concurrency, body.ramp, body.canary, after.failed if after is not None else 0,
        above.share if above is not None else 1.0, above.minimum if above is not None else 0,
    )  # fmt: skip
    return RunTerms(
        body.method, body.lane, body.retry, int(body.deadline * 1000), body.on_offline == "skip",
        body.selector if isinstance(body.selector, str) else "", subject.identity,
        (find_header(request, b"traceparent") or "")[:64], now, now + int(body.run_deadline * 1000), pace,
    )  # fmt: skip
