"""Drives one run, as its owner: starts what the plan allows, follows what is under way, and stores every step.

Created by `run_keeper`. A step is stored before what it starts begins, so Redis always knows at least what may be under
way. The owner holds the run for a few seconds at a time; what it starts is not valid any longer than that, and its
steps are refused once another node has taken the run. While Redis is away it waits, and then goes on or gives way.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from fairlead.bus.doorbell import ResultsAdded, TargetEnded
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable, CommandUnknown
from fairlead.fleet.runs.run_record import OwnedRun, RunState, RunStep, RunTargetState, state_of_command
from fairlead.fleet.runs.runs import Runs, StepAnswer
from fairlead.routing.commands.dispatch import Dispatcher
from fairlead.routing.followers import Follower, Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.runs.late_agents import Joining, LateAgents
from fairlead.routing.runs.run_plan import RunPlan
from fairlead.routing.runs.run_signatures import RunSignatures
from fairlead.routing.runs.target_commands import TargetCommands, TargetEnd, command_of
from fairlead.routing.runs.targets.start_window import LOT, StartWindow
from fairlead.routing.runs.targets.target_followers import TargetFollower, TargetFollowers
from fairlead.routing.store_memory import MemoryLevel, StoreMemory
from fairlead.routing.tenant_limits import TenantLimits
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

STARTS: Final = 128
"""Targets that are started at once: a batch of the store."""
HEAD: Final = 32
HEAD_START: Final = 0.05
"""Seconds for which the first HEAD targets are under way alone, unless one of them ends earlier: the first result would
otherwise wait behind hundreds of starts, here, in Redis and at the node of its agent."""
STARTING: Final = 4
"""Batches that may be on their way: Redis handles one while this node prepares another."""
READS: Final = 256
RENEW_MS: Final = 1_500
LOOK: Final = 1.0
"""Seconds between two looks at targets of which nothing was heard."""
RING: Final = 0.1
"""Seconds between two doorbells to those who follow the run. The first end is told at once."""
GATHER: Final = 0.02
"""Seconds between two turns while many targets are under way: what ends meanwhile is one step, which costs Redis and
this node as much as what it stores."""
CANCELS: Final = 64
OUTAGE: Final = 30.0


@dataclass(frozen=True, slots=True)
class RunServices:
    """What all drivers of a node use."""

    store: Store
    runs: Runs
    commands: TargetCommands
    dispatch: Dispatcher
    followers: Followers
    membership: Membership
    memory: StoreMemory
    inbox: Inbox
    tenants: TenantLimits
    late: LateAgents


def wish_topic(run: str) -> str:
    """The topic on which the owner of a run hears that a caller has asked for something."""
    return f"wish {run}"


class RunDriver:
    def __init__(self, services: RunServices, run: OwnedRun, plan: RunPlan) -> None:
        self._services = services
        self._run = run
        self._plan = plan
        self.ended_targets = 0
        self._until = run.until
        self._seq = run.seq
        self._stepped = self._noted = self._looked = self._rung = self._turned = 0.0
        self._told_ends = False
        self._head_until = 0.0
        """Until when the first targets are under way alone; 0 before they have started."""
        self._wish = self._done_wish = ""
        self.ended = False
        """Whether a step is stored after which nothing is left to do."""
        self._ring_due: tuple[str, ...] = ()
        self._signatures: RunSignatures | None = None
        self._joining: Joining | None = None
        self._starts: set[asyncio.Task[None]] = set()
        self._window = StartWindow()
        self._clock = asyncio.get_running_loop().time
        self._bell = Follower(asyncio.get_running_loop())
        self._targets = TargetFollowers(services.followers, self._bell)

    def notify(self) -> None:
        """A caller has asked for something: read it with the next step."""
        self._stepped = 0.0
        self._bell.notify()

    async def drive(self) -> None:
        """Drive the run until it has ended, or another node has it."""
        if self._run.terms.signature:
            self._signatures = await asyncio.to_thread(RunSignatures, self._run)
        self._follow(self._plan.in_flight_targets() + self._plan.queued_targets(), valid=0)
        if self._plan.state is RunState.CANCELLED:
            await self._cancel_under_way()
        self._targets.look(everywhere=True)
        self._services.followers.add(wish_topic(self._run.id), self)
        if self._plan.open:
            self._joining = Joining(self._services.late, self._run, self._bell.notify)
        try:
            while await self._turn():
                await self._wait()
        finally:
            self._services.followers.leave(wish_topic(self._run.id), self)
            for start in self._starts:
                start.cancel()
            if self._joining is not None:
                self._joining.close()
            self._targets.close()

    def tell_end(self, end: TargetEnded) -> None:
        """Never called: no command has the topic of a wish."""

    async def give_up(self) -> None:
        """Let another node go on at once, because this one stops."""
        runs, now = self._services.runs, self._services.membership.now()
        await runs.release(self._run.id, self._run.gen)
        await runs.open(self._run.id, now)

    async def _turn(self) -> bool:
        """Do what there is to do. Returns False if nothing is left, or another node has the run."""
        self._bell.clear()
        self._turned = self._clock()
        self._look()
        await self._read_news()
        self._obey()
        self._join()
        most = STARTS if self._head_until else HEAD
        started: list[int] = []
        if self._may_start():
            started = self._plan.start(min(most, self._spread_room(), self._window.room(self._clock())))
        if not await self._store():
            return False
        if started:
            self._head_until = self._head_until or self._clock() + HEAD_START
            targets = self._follow(started, self._until)
            lot = self._window.started(len(targets), self._clock())
            for target in targets:
                target.lot = lot
            self._spawn_start(targets)
        if self.ended:
            self._tell(force=True)
            await self._close()
            return False
        return True

    async def _wait(self) -> None:
        if self._targets.has_news or self._may_start():
            # What ended meanwhile is handled together.
            room = min(self._plan.room, self._window.room(self._clock()))
            crowded = self.ended_targets and self._plan.in_flight > STARTS > room
            await asyncio.sleep(max(0.0, self._turned + GATHER - self._clock()) if crowded else 0)
            return
        most = HEAD_START if self._few_are_ahead else RING if self._ring_due else LOOK
        if self._plan.counts[RunTargetState.WAITING]:
            most = min(most, self._window.until_older(self._clock()))
        await self._bell.wait(most)

    def _may_start(self) -> bool:
        plan = self._plan
        if plan.state is not RunState.RUNNING or not plan.counts[RunTargetState.WAITING]:
            return False
        full = self._services.memory.level is MemoryLevel.FULL
        room = plan.room > 0 and self._spread_room() > 0
        if full or not room or self._few_are_ahead or len(self._starts) >= STARTING:
            return False
        return self._window.room(self._clock()) >= min(LOT, plan.room)

    @property
    def _few_are_ahead(self) -> bool:
        """Whether the first targets are to be under way alone."""
        return not self.ended_targets and self._clock() < self._head_until

    def _spread_room(self) -> int:
        """How many more targets may have started by now, if their starts are spread over some time."""
        terms, targets = self._run.terms, len(self._run.agents)
        passed = self._services.membership.now() - terms.created
        if passed >= terms.spread:
            return targets
        begun = targets - self._plan.counts[RunTargetState.WAITING]
        return 1 + targets * max(0, passed) // terms.spread - begun

    def _follow(self, targets: list[int], valid: int) -> list[TargetFollower]:
        run, follow = self._run, self._targets.follow
        return [follow(index, command_of(run.id, run.terms, run.agents[index]), valid) for index in targets]

    def _spawn_start(self, targets: list[TargetFollower]) -> None:
        task = asyncio.create_task(self._start(targets))
        self._starts.add(task)
        task.add_done_callback(self._started)

    def _started(self, task: asyncio.Task[None]) -> None:
        self._starts.discard(task)
        self._bell.notify()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("starting targets of run %s failed", self._run.id, exc_info=error)

    async def _start(self, targets: list[TargetFollower]) -> None:
        run = self._run
        wanted = [(target.command, run.agents[target.index]) for target in targets]
        started = await self._services.commands.start(run, self._signatures, wanted, targets[0].valid)
        for target in targets:
            target.known = target.command not in started.in_doubt
            if target.command in started.refused and target.command in self._targets:
                self._end(target, RunTargetState.FAILED, started.refused[target.command], "")
            elif target.command in started.queued:
                self._plan.queue(target.index)
                self._release(target, answered=False)

    def _look(self) -> None:
        if (now := self._clock()) - self._looked >= LOOK:
            self._looked = now
            self._targets.look()

    async def _read_news(self) -> None:
        """Read the targets of which there is news, and end in the plan those that have ended."""
        told, news = self._targets.take_news(READS)
        for target in told:
            assert target.end is not None
            said = target.end
            self._end(target, state_of_command(said.state), said.code, said.digest, said.exit or "")
        ends = await self._services.commands.read_ends([target.command for target in news])
        again: list[TargetFollower] = []
        for target, end in zip(news, ends, strict=True):
            if target.command not in self._targets:
                continue  # it was refused while this was read
            if isinstance(end, TargetEnd):
                self._end(target, state_of_command(end.state), end.code, end.digest, end.exit)
            elif end is None:
                again += self._missing(target)
            elif end is False:
                target.known = True
                if self._plan.state is RunState.CANCELLED:
                    await self._cancel([target.command])
            # What could not be read is read again by one of the next looks.
        if again:
            self._spawn_start(again)

    def _missing(self, target: TargetFollower) -> list[TargetFollower]:
        """A target has no command. Returns it if its command is to be started again."""
        if target.known:
            self._end(target, RunTargetState.FAILED, "record_lost", "")
        elif self._services.membership.now() > target.valid:  # nobody starts it any more
            if self._run.stale:
                self._end(target, RunTargetState.FAILED, "outcome_unknown", "")
            elif self._plan.state.stopped:
                self._end(target, RunTargetState.CANCELLED, "", "")
            else:
                target.valid = self._until
                return [target]
        return []

    def _end(self, target: TargetFollower, state: RunTargetState, code: str, digest: str, exit: str = "") -> None:
        if exit and state is RunTargetState.OK and self._run.terms.fail_on_exit:
            state, code = RunTargetState.FAILED, exit
        if state is RunTargetState.OFFLINE and self._run.terms.skips_offline:
            state = RunTargetState.SKIPPED
        self._targets.drop(target)
        self._release(target, answered=state is RunTargetState.OK)
        self.ended_targets += self._plan.end(target.index, state, code, digest)

    def _release(self, target: TargetFollower, *, answered: bool) -> None:
        """Let the start of this target make room for that of another. `answered` says that its agent did it."""
        if target.lot is not None and answered:
            self._window.answered(target.lot, self._clock())
        elif target.lot is not None:
            self._window.released(target.lot)
        target.lot = None

    def _join(self) -> None:
        """Have the agents that were found since the last turn as targets, too."""
        if self._joining is not None and self._plan.open and (joined := self._joining.take()):
            self._run.agents.extend(joined)
            self._plan.join(len(joined))

    def _obey(self) -> None:
        """Do what callers have asked for, and what the time asks for."""
        if self._wish:
            match self._wish:
                case "pause":
                    self._plan.pause()
                case "resume":
                    self._plan.resume()
                case "cancel":
                    self._plan.cancel()
            self._done_wish, self._wish = self._wish, ""
        if self._services.membership.now() >= self._run.terms.expires:
            self._plan.expire()

    async def _store(self) -> bool:
        """Store what has changed, or that this node is still here. Returns False if the run is not its own any more."""
        done, self._done_wish = self._done_wish, ""
        step = self._plan.take_step(done)
        if step is None:
            if (self._clock() - self._stepped) * 1000 < RENEW_MS:
                return True
            step = self._plan.renewal()
        answer = await self._take_step(step)
        if answer.why != "ok":
            level = logging.INFO if answer.why == "fenced" else logging.WARNING
            logger.log(level, "run %s is not driven here any more: %s", self._run.id, answer.why)
            return False
        self._stepped, self.ended = self._clock(), step.ended
        self._until, self._wish = answer.until, answer.wish
        if self._wish:
            self._bell.notify()
        if step.ends or step.started or done or step.ended:
            self._ring_due = answer.followers
        first_ends = bool(step.ends and self._ring_due) and not self._told_ends
        self._told_ends |= first_ends
        self._tell(force=first_ends)
        if (self._clock() - self._noted) * 1000 >= RENEW_MS:
            self._noted = self._clock()
            self._services.runs.open(self._run.id, self._until)
        if done == "cancel":
            await self._cancel_under_way()
        return True

    async def _take_step(self, step: RunStep) -> StepAnswer:
        """Store a step, however long Redis is away."""
        services = self._services
        self._seq += 1
        kept = services.commands.retention_ms
        while True:
            try:
                return await services.runs.step(self._run.id, self._run.gen, self._seq, kept, step, self._run.agents)
            except BusUnavailable:
                await wait_for_redis(services.store, OUTAGE)

    def _tell(self, force: bool = False) -> None:
        """Ring those who follow the run, a few times a second."""
        if self._ring_due and (force or self._clock() - self._rung >= RING):
            self._rung = self._clock()
            for lease in self._ring_due:
                self._services.inbox.ring(lease, (ResultsAdded(self._run.id),))
            self._ring_due = ()

    async def _cancel_under_way(self) -> None:
        """Ask for the end of all commands under way, once those on their way to Redis are there."""
        if self._starts:
            await asyncio.wait(self._starts)
        await self._cancel(self._targets.commands)

    async def _cancel(self, commands: list[str]) -> None:
        for at in range(0, len(commands), CANCELS):
            asked = [self._services.dispatch.cancel(command) for command in commands[at : at + CANCELS]]
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                # What failed is found open, and cancelled again, by one of the next looks.
                if isinstance(answer, Exception) and not isinstance(answer, BusUnavailable | CommandUnknown):
                    logger.error("a command of run %s was not cancelled", self._run.id, exc_info=answer)

    async def _close(self) -> None:
        try:
            self._services.tenants.run_ended(self._run.terms.tenant, self._run.id)
            await self._services.runs.close(self._run.id)
        except BusUnavailable:
            pass  # whoever finds it in the index sees that it has ended
