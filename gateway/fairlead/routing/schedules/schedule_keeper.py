"""Begins the runs of schedules that are due, on whichever node looks first.

The node runs its loop. Two nodes look for each schedule at any moment. A start begins a run under a key made of the
schedule and the time at which it was due, and notes it afterwards: if a node dies in between, the next one begins the
same run again, which is one run, and notes it. What the poster of the schedule may do now is asked at each start.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from typing import Final

import msgspec

from fairlead.audit.log_writer import AuditLogWriter
from fairlead.audit.records import SCHEDULED, AuditEvent
from fairlead.errors import BusUnavailable, FairleadError
from fairlead.fleet.contents.content_store import digest_of
from fairlead.fleet.node_table import choose
from fairlead.fleet.runs.run_record import RunTerms
from fairlead.fleet.schedules.schedule_record import LastStart, Schedule
from fairlead.fleet.schedules.schedules import SCHEDULES_LIMIT, Schedules
from fairlead.repeated_lines import RepeatedLines
from fairlead.routing.contents.content_keeper import ContentKeeper
from fairlead.routing.membership.membership import Membership
from fairlead.routing.runs.batches import spread_order
from fairlead.routing.runs.late_agents import LateAgents
from fairlead.routing.runs.run_service import PostedRun, RunService
from fairlead.routing.schedules.schedule_times import next_start
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

PERIOD: Final = 1.0
"""Seconds between two looks for schedules that are due."""
AGAIN: Final = 5.0
"""Seconds until this node tries a start again that has failed, such as for a quota: it selects the agents each time."""
KEEPERS: Final = 2
"""Nodes that look for a schedule at a time: one of them may have died a moment ago."""
RENEWAL: Final = 6 * 3600.0
"""Seconds between two renewals of all contents of schedules: a few of them may fail before any is gone."""
MISSED_MS: Final = 60_000
"""A start that is later than this was missed: cron begins within a minute, too."""


class ScheduleKeeper:
    def __init__(
        self,
        schedules: Schedules,
        service: RunService,
        late: LateAgents,
        contents: ContentKeeper,
        membership: Membership,
        metrics: Metrics,
    ) -> None:
        self._schedules = schedules
        self._service = service
        self._late = late
        self._contents = contents
        self._membership = membership
        self.log: AuditLogWriter | None = None
        self._started = self._failed = 0
        self._errors = RepeatedLines(lines=SCHEDULES_LIMIT)
        self._failing: dict[str, int] = {}
        """Until when this node leaves schedules alone that it could not begin."""
        metrics.add_counter(
            "fairlead_schedule_starts_total", "Runs that this node began for schedules", lambda: self._started
        )
        metrics.add_counter(
            "fairlead_schedule_failures_total",
            "Starts of schedules that began no run, because they were missed, forbidden, without agents, or failed",
            lambda: self._failed,
        )

    async def run(self) -> None:
        """Begin what is due until the node stops."""
        clock, renew_at = asyncio.get_running_loop().time, 0.0
        while True:
            await asyncio.sleep(PERIOD * random.uniform(0.8, 1.0))
            try:
                await self._begin_due()
                if clock() >= renew_at:
                    await self._renew_contents()
                    renew_at = clock() + RENEWAL * random.uniform(0.8, 1.0)
            except BusUnavailable as e:
                logger.debug("schedules are looked at once Redis is back: %s", e)
            except FairleadError:
                logger.exception("looking at schedules failed")

    async def _renew_contents(self) -> None:
        """Keep the contents of schedules that are due only in weeks."""
        now = self._membership.now()
        for one in await self._schedules.all():
            terms = one.schedule.terms
            if terms.content and not await self._contents.renew(terms.content, one.due - now, terms.expires):
                logger.warning("the content of schedule %s (%s) is gone", one.schedule.id, one.schedule.name)

    async def _begin_due(self) -> None:
        membership = self._membership
        if not membership.alive:
            return
        now, living = membership.now(), membership.living()
        due = await self._schedules.due(now, SCHEDULES_LIMIT)
        self._failing = {id: until for id, until in self._failing.items() if id in due and until > now}
        # In any order, so that those of one caller are not always before those of others.
        for id in random.sample(list(due), len(due)):
            if id in self._failing or membership.lease not in choose(f"schedule {now // 1000} {id}", living, KEEPERS):
                continue
            try:
                await self._begin_one(id, due[id], now)
            except BusUnavailable:
                raise
            except Exception as e:
                # Whatever it is, it must not keep the others from beginning.
                self._failing[id] = now + int(AGAIN * 1000 * random.uniform(0.8, 1.0))
                if isinstance(e, FairleadError) and e.temporary:
                    logger.debug("schedule %s is begun later: %s", id, e.message)
                else:
                    level = self._errors.level(f"{id} {e!r}", logging.ERROR, now / 1000)
                    logger.log(level, "beginning schedule %s failed", id, exc_info=True)

    async def _begin_one(self, id: str, due: int, now: int) -> None:
        """Raises FairleadError if it is to be tried again."""
        schedule = await self._schedules.read(id)
        if schedule is None:
            self._schedules.forget(id)
            return
        start = await self._begin(schedule, due, now)
        following = next_start(schedule.cron, schedule.zone, max(now, due))
        if await self._schedules.advance(id, due, following, start):
            self._started += start.outcome == "started"
            self._failed += start.outcome != "started"
            logger.info("schedule %s (%s): %s %s", id, schedule.name, start.outcome, start.run)

    async def _begin(self, schedule: Schedule, due: int, now: int) -> LastStart:
        """Begin the run that was due. Raises FairleadError, after which it is tried again."""
        if now - due > MISSED_MS and not schedule.catches_up:
            return LastStart(due, "missed")
        terms = schedule.terms
        assert terms.poster is not None, "a schedule has its poster"
        if self._late.may_run(terms.poster, terms.method) is None:
            reason = (
                f"{terms.subject} may not run method {terms.method} any more: its token was revoked, its issuer is not "
                "trusted, or no role allows it"
            )
            await self._record(schedule, "denied", reason)
            return LastStart(due, "forbidden")
        try:
            agents = await self._late.find(terms, (), linked=terms.late)
            if not agents and not terms.late:
                return LastStart(due, "no_agents")
            terms = await self._terms(schedule, now)
            key = hashlib.sha256(f"schedule\0{schedule.id} {due}".encode()).hexdigest()

            async def permit(run: str) -> None:
                await self._record(schedule, "allowed", run=run, count=len(agents))

            targets = spread_order(agents) if terms.spread else agents
            order = PostedRun(terms, schedule.payload, targets, key, schedule.id)
            run, _ = await self._service.submit(order, permit)
        except FairleadError as e:
            if isinstance(e, BusUnavailable) or (e.temporary and now - due <= MISSED_MS):
                raise
            logger.warning("the run of schedule %s was not begun: %s", schedule.id, e.message)
            return LastStart(due, e.code)
        return LastStart(due, "started", run)

    async def _record(
        self, schedule: Schedule, outcome: str, reason: str = "", run: str = "", count: int | None = None
    ) -> None:
        """Write that a run begins on behalf of whoever has made the schedule, before it does, or why none does."""
        if self.log is None:
            return
        terms, digest = schedule.terms, hashlib.sha256(schedule.payload).hexdigest()
        await self.log.write(
            AuditEvent(
                terms.subject, "schedule", SCHEDULED, outcome, reason, method=terms.method, digest=digest,
                content=digest_of(terms.content), selector=terms.selector, count=count, run=run,
                detail=f"{schedule.id} {schedule.name}",
                credential="" if terms.poster is None else terms.poster.token_id, tenant=terms.tenant,
            )
        )  # fmt: skip

    async def _terms(self, schedule: Schedule, now: int) -> RunTerms:
        """The terms of a run that begins now. Its content is kept until the next one needs it, too. A run that agents
        join ends when the next one begins, which they join then: otherwise there would be ever more of them."""
        terms, following = schedule.terms, next_start(schedule.cron, schedule.zone, now)
        if terms.content:
            await self._contents.refer_ahead(terms.tenant, digest_of(terms.content), following - now, terms.expires)
        expires = min(now + terms.expires, following) if terms.late else now + terms.expires
        return msgspec.structs.replace(terms, created=now, expires=expires, poster=terms.poster if terms.late else None)
