"""The handlers of `/v1/schedules`: have a run begin again and again, list such schedules, remove one.

They check bodies and rights and call `routing.schedules`. Whoever may run the method may see and remove the schedules
that they have made; for those of others, a rule has to allow that on every agent.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api.request_body import decoded, read_body
from fairlead.app.api.runs import schedule_schemas
from fairlead.app.api.schemas import iso
from fairlead.app.routes.runs.run_body import check_arguments, check_body, run_terms
from fairlead.authorization.policy import Verb
from fairlead.authorization.posters.poster_rights import poster_of
from fairlead.authorization.subject import Subject
from fairlead.errors import CommandUnknown, InvalidRequest, Unavailable
from fairlead.fleet import selector
from fairlead.fleet.contents.content_store import digest_of
from fairlead.fleet.schedules.schedule_record import LastStart, ListedSchedule, Schedule
from fairlead.fleet.schedules.schedules import PAYLOAD_LIMIT, SCHEDULES_LIMIT, TENANT_LIMIT
from fairlead.node import Node
from fairlead.routing.schedules.schedule_times import next_start
from fairlead.wire.ids import uuid7

BODY_LIMIT = 768 << 10

_new_schedule = msgspec.json.Decoder(schedule_schemas.NewSchedule)
_encode = msgspec.json.Encoder().encode


class ScheduleRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._schedules = node.routing.schedules
        self._contents = node.routing.contents
        self._memory = node.routing.memory
        self._authorizer = node.authorizer
        self._now = node.membership.now

    def handlers(self) -> dict[str, Callable[[Request], Awaitable[ASGIApp]]]:
        """The handler of each operation."""
        return {"createSchedule": self.create, "listSchedules": self.list, "removeSchedule": self.remove}

    async def create(self, request: Request) -> Response:
        raw = await read_body(request, BODY_LIMIT)
        subject = caller(request)
        body = decoded(_new_schedule, raw)
        _check(body)
        self._authorizer.require_still(subject, (Verb.RUN,))
        payload, now = bytes(body.run.payload), self._now()
        due = next_start(body.cron, body.zone, now)
        terms = run_terms(body.run, subject, request, 0, (), b"")
        terms = msgspec.structs.replace(terms, poster=poster_of(subject), traceparent="")
        if terms.content:
            name = await self._contents.refer_ahead(subject.tenant, digest_of(terms.content), due - now, terms.expires)
            terms = msgspec.structs.replace(terms, content=name)
        schedule = Schedule(
            uuid7(now, random.randbytes(10)), body.name, body.cron, body.zone, body.missed == "run", terms, payload, now
        )
        detail = f"{schedule.id} {schedule.name}: {schedule.cron} {schedule.zone}"
        self._auditor.note(
            request, payload, method=terms.method, selector=terms.selector, content=digest_of(terms.content),
            detail=detail,
        )  # fmt: skip
        self._memory.check_command(len(payload))
        await self._auditor.allow(request)
        await self._put(subject, schedule, due)
        shown = _shown(ListedSchedule(schedule, due, None))
        headers = {"location": f"/v1/schedules/{schedule.id}"}
        return Response(_encode(shown), 201, headers, media_type="application/json")

    async def _put(self, subject: Subject, schedule: Schedule, due: int) -> None:
        """Raises InvalidRequest if the caller has one of this name, and Unavailable if there are too many."""
        most = TENANT_LIMIT if self._authorizer.separates(subject) else SCHEDULES_LIMIT
        why, taken = await self._schedules.put(schedule, due, most)
        if why == "name":
            raise InvalidRequest(
                f"you have a schedule {schedule.name} already, which is {taken}: expected another name (or remove that "
                "one first)",
                field="name",
            )
        if why != "ok":
            whose = f"this tenant has {most}" if why == "tenant" else f"there are {SCHEDULES_LIMIT}"
            raise Unavailable(f"{whose} schedules, the most that are kept: remove one")

    async def list(self, request: Request) -> Response:
        subject = caller(request)
        found = [
            one
            for one in await self._schedules.of_tenant(subject.tenant)
            if self._authorizer.allows_run(subject, Verb.RESULTS, one.schedule.terms.subject, one.schedule.terms.method)
        ]
        await self._auditor.allow(request, len(found))
        document = schedule_schemas.ScheduleList([_shown(one) for one in found])
        return Response(_encode(document), media_type="application/json")

    async def remove(self, request: Request) -> Response:
        id, subject = request.path_params["schedule"], caller(request)
        try:
            found = await self._schedules.read(id)
        except msgspec.MsgspecError:
            return await self._remove_unreadable(request, id, subject)
        if found is None or found.terms.tenant != subject.tenant:
            raise _unknown(id)
        self._authorizer.require_run(subject, Verb.CANCEL, found.terms.subject, found.terms.method)
        self._auditor.note(request, method=found.terms.method, selector=found.terms.selector)
        await self._auditor.allow(request)
        await self._schedules.remove(found)
        return Response(status_code=204)

    async def _remove_unreadable(self, request: Request, id: str, subject: Subject) -> Response:
        """Remove a schedule whose caller and method nobody can say: whoever may end what anybody has begun may."""
        if not await self._schedules.holds(id, subject.tenant):
            raise _unknown(id)
        self._authorizer.require_run(subject, Verb.CANCEL, "", "")
        await self._auditor.allow(request)
        await self._schedules.remove_unreadable(id, subject.tenant)
        return Response(status_code=204)


def _unknown(id: str) -> CommandUnknown:
    return CommandUnknown(f"no schedule {id}: it was never made, or it was removed")


def _check(body: schedule_schemas.NewSchedule) -> None:
    run = body.run
    check_body(run)
    check_arguments(run)
    if run.selector is UNSET:
        raise InvalidRequest(
            "agents are selected at each start: expected a selector, and no agents", field="run.agents"
        )
    if run.signature is not UNSET or run.id is not UNSET:
        raise InvalidRequest("nobody is there to sign when a schedule is due: expected no id", field="run.id")
    if run.dry_run:
        raise InvalidRequest("a schedule is no dry run: expected none", field="run.dry_run")
    if run.batches is not None:
        raise InvalidRequest("batches are those of one snapshot: expected none (or `spread`)", field="run.batches")
    if (size := len(bytes(run.payload))) > PAYLOAD_LIMIT:
        raise InvalidRequest(
            f"payload of {size} bytes exceeds the {PAYLOAD_LIMIT} of a schedule: store it as a content, and name that",
            field="run.payload",
        )
    selector.parse(str(run.selector))


def _shown(one: ListedSchedule) -> schedule_schemas.ShownSchedule:
    schedule, terms = one.schedule, one.schedule.terms
    return schedule_schemas.ShownSchedule(
        schedule.id, schedule.name, schedule.cron, schedule.zone, "run" if schedule.catches_up else "skip",
        terms.method, terms.selector, terms.subject, iso(schedule.created), iso(one.due), _last(one.last),
    )  # fmt: skip


def _last(last: LastStart | None) -> schedule_schemas.ShownStart | None:
    return None if last is None else schedule_schemas.ShownStart(iso(last.due), last.outcome, last.run or None)
