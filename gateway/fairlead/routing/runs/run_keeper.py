"""The runs that this node owns: drives those that it accepts, and takes over those whose owner has gone.

The node runs its loop. A run is lost when nobody has prolonged its ownership for some seconds; two nodes look for each
lost run at any moment, and a script lets one of them have it. A node that stops gives its runs up, so that others go on
at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from fairlead.bus.doorbell import ResultsAdded
from fairlead.errors import BusUnavailable, FairleadError, Unavailable
from fairlead.fleet.node_table import choose
from fairlead.fleet.runs.run_record import OwnedRun, RunGroup, RunRow
from fairlead.fleet.runs.runs import TakenRun
from fairlead.routing.runs.run_driver import RunDriver, RunServices
from fairlead.routing.runs.run_plan import RunPlan, lost_step
from fairlead.routing.tenant_limits import has_place
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

PERIOD: Final = 1.0
"""Seconds between two looks for lost runs."""
LOST: Final = 16
"""Lost runs that one look takes."""
KEEPERS: Final = 2
"""Nodes that look for a lost run at a time: one of them may have died a moment ago."""
DRIVEN: Final = 64
"""Runs that one node drives at once, at some 400 bytes for each target under way and 200 for each other."""
GIVE_UP: Final = 2.0
"""Seconds to give up all runs while the node stops."""


class RunKeeper:
    def __init__(self, services: RunServices, metrics: Metrics) -> None:
        self._services = services
        self._drivers: dict[str, RunDriver] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tenants: dict[str, str] = {}
        """The tenant of each run that is driven here."""
        self._beginning: Counter[str] = Counter()
        """The number of runs of each tenant that are about to begin here."""
        self._ended_targets = self._ended_runs = self._taken_over = 0
        metrics.add_gauge("fairlead_runs_driven", "Runs that this node owns", lambda: len(self._drivers))
        metrics.add_counter("fairlead_runs_ended_total", "Runs that ended on this node", lambda: self._ended_runs)
        metrics.add_counter("fairlead_run_takeovers_total", "Runs that this node took over", lambda: self._taken_over)
        metrics.add_counter(
            "fairlead_run_targets_ended_total",
            "Targets of runs that ended while this node drove the run",
            lambda: self._ended_targets + sum(driver.ended_targets for driver in self._drivers.values()),
        )

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """A place for a run that is about to begin here. Raises Unavailable if this node drives as many runs as it can,
        or as many of this tenant as are its share: a run may last a week, and need no agent."""
        if not has_place(tenant, Counter(self._tenants.values()) + self._beginning, DRIVEN):
            raise Unavailable(
                f"this node drives {len(self._drivers)} runs, which is the most (of one tenant): wait for one to end, "
                "or cancel one"
            )
        self._beginning[tenant] += 1
        try:
            yield
        finally:
            self._beginning -= Counter([tenant])  # and forget a tenant that begins none

    def begin(self, run: OwnedRun, plan: RunPlan) -> None:
        """Drive a run that belongs to this node."""
        if run.id in self._drivers:
            return
        driver = self._drivers[run.id] = RunDriver(self._services, run, plan)
        self._tenants[run.id] = run.terms.tenant
        self._tasks[run.id] = asyncio.create_task(self._drive(run.id, driver), name=f"run {run.id}")

    async def run(self) -> None:
        """Look for lost runs until the node stops, and then give up those that are driven here."""
        try:
            while True:
                await asyncio.sleep(PERIOD * random.uniform(0.8, 1.0))
                try:
                    await self._take_lost()
                except BusUnavailable as e:
                    logger.debug("lost runs are looked for once Redis is back: %s", e)
                except FairleadError:
                    logger.exception("looking for lost runs failed")
        finally:
            await self._give_up()

    async def _drive(self, run: str, driver: RunDriver) -> None:
        try:
            await driver.drive()
            self._ended_runs += driver.ended
        except Exception:
            # It is taken over in some seconds, by this node or another.
            logger.exception("driving run %s failed", run)
        finally:
            self._ended_targets += driver.ended_targets
            del self._drivers[run], self._tasks[run], self._tenants[run]

    async def _take_lost(self) -> None:
        services = self._services
        membership = services.membership
        if not membership.alive or len(self._drivers) >= DRIVEN:
            return
        now, living = membership.now(), membership.living()
        for run in await services.runs.without_owner(now, LOST):
            if run in self._drivers or membership.lease not in choose(f"run {now // 1000} {run}", living, KEEPERS):
                continue
            taken = await services.runs.take(run, membership.lease)
            if isinstance(taken, TakenRun):
                await self._take_over(run, taken)
            elif taken is None:
                await self._forget(run)
            else:
                await services.runs.open(run, taken)

    async def _forget(self, run: str) -> None:
        """A run is over, or gone: its owner could not say so any more, or Redis was away."""
        services = self._services
        row = await services.runs.read(run)
        if row is not None:
            services.tenants.run_ended(row.terms.tenant, run)
        await services.runs.close(run)

    async def _take_over(self, run: str, taken: TakenRun) -> None:
        runs = self._services.runs
        await runs.open(run, taken.until)
        row, payload = await runs.read(run), await runs.payload(run)
        if row is None or payload is None:
            await runs.close(run)
            return
        agents, states, groups = await runs.agents(run), await runs.states(run), await runs.groups(run)
        if len(agents) != row.targets or len(states) != row.targets:
            await self._end_lost(row, taken, groups)
            return
        stale = self._services.membership.now() - taken.idle_since > self._services.commands.retention_ms // 2
        owned = OwnedRun(run, row.terms, payload, agents, taken.gen, taken.until, row.seq, stale)
        self._taken_over += 1
        logger.info("took over run %s with %d targets from %s", run, row.targets, row.owner)
        plan = RunPlan(row.terms.pace, states, row.state, row.reason, groups, late=row.terms.late)
        self.begin(owned, plan)

    async def _end_lost(self, row: RunRow, taken: TakenRun, groups: Sequence[RunGroup]) -> None:
        """End a run that nobody can drive any more, because Redis has lost some of its targets."""
        services = self._services
        logger.error("run %s lacks some of its targets in Redis: it is aborted", row.id)
        kept = services.commands.retention_ms
        answer = await services.runs.step(row.id, taken.gen, row.seq + 1, kept, lost_step(row, groups), ())
        for lease in answer.followers:
            services.inbox.ring(lease, (ResultsAdded(row.id),))
        services.tenants.run_ended(row.terms.tenant, row.id)
        await services.runs.close(row.id)

    async def _give_up(self) -> None:
        drivers = list(self._drivers.values())
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GIVE_UP)
        if drivers and self._services.store.available:
            try:
                async with asyncio.timeout(GIVE_UP):
                    await asyncio.gather(*(driver.give_up() for driver in drivers), return_exceptions=True)
            except TimeoutError:
                logger.warning("%d runs could not be given up in time", len(drivers))
