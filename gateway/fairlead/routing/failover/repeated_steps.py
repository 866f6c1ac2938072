"""Says again what this node has stored lately, and which commands its links have: the work of one comparison.

Only `Comparison` calls it. The order matters: first what was accepted, then what was sent, then results, then ends.
What is found changed is told as if it had just happened. How a command has ended whose acceptance is lost, too, is said
by `LostEnds`. It may be repeated, and raises BusUnavailable if Redis goes away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fairlead.fleet import schema
from fairlead.fleet.failover.recent_steps import (
    AcceptedStep,
    CancelStep,
    EndedStep,
    EndStep,
    KeyStep,
    SentStep,
    Step,
    StoredStep,
)
from fairlead.fleet.failover.repairs import Recalled, ends
from fairlead.fleet.schema import TargetState
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.commands.completion import Completion
from fairlead.routing.delivery.command_delivery import CommandDelivery
from fairlead.routing.failover.lost_ends import AT_ONCE, LostEnds
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.shards import SHARDS, agent_shard
from fairlead.store.answer import map_bounded
from fairlead.wire.messages import OVER


class RepeatedSteps:
    def __init__(
        self, fleet: FleetStore, completion: Completion, delivery: CommandDelivery, membership: Membership
    ) -> None:
        self._store = fleet.store
        self._repairs = fleet.repairs
        self._lost_ends = LostEnds(fleet.repairs)
        self._recent = fleet.records.recent
        self._completion = completion
        self._delivery = delivery
        self._membership = membership

    def nothing_known(self, hub: Hub) -> bool:
        """Whether this node has told nothing yet, and holds no agent."""
        return not self._recent and not len(hub)

    async def repeat(self, hub: Hub, owner: str) -> str:
        """Say again everything whose keys this server has (see `Store.owner`). Returns what was found lost, in words,
        or ""."""
        lost: Counter[str] = Counter()
        owned = [self._store.owner(schema.index_key(shard)) == owner for shard in range(SHARDS)]

        def is_here(step: Step | StoredStep) -> bool:
            if isinstance(step, KeyStep):
                return self._store.owner(step.key) == owner
            return owned[agent_shard(step.agent)]

        steps = [step for step in self._recent if is_here(step)]
        sessions = [session for session in hub if owned[agent_shard(session.agent)]]
        others = await self._restore(steps, lost)
        await self._recall_sent([step for step in steps if isinstance(step, SentStep)], lost)
        await self._recall_streams(sessions, lost)
        own = [step for step in self._recent.stored if is_here(step)]
        await self._append([*own, *(step for step in others if isinstance(step, StoredStep))], lost)
        await self._end([*steps, *(step for step in others if isinstance(step, EndedStep))], lost)
        await self._lost_ends.forget({step.command for step in others})
        return ", ".join(f"{count} {what}" for what, count in sorted(lost.items()) if count)

    async def _restore(self, steps: Iterable[Step], lost: Counter[str]) -> list[EndStep]:
        """Returns what other nodes know of the ends of commands that this one has accepted."""
        keys = [step for step in steps if isinstance(step, KeyStep)]
        async for _ in map_bounded(self._repairs.bind_key, keys, AT_ONCE):
            pass
        now = self._membership.now()
        accepted = [step for step in steps if isinstance(step, AcceptedStep)]
        kept = [step for step in accepted if now < step.created + step.retention]  # else it may have expired
        known: list[str] = []
        async for step, (was_gone, others_know) in map_bounded(self._repairs.end_lost, kept, AT_ONCE):
            lost["commands"] += was_gone
            if others_know:
                known.append(step.command)
        return await self._lost_ends.of_others(known)

    async def _recall_sent(self, steps: Iterable[SentStep], lost: Counter[str]) -> None:
        newest = {step.command: step for step in steps}
        async for step, found in map_bounded(
            lambda step: self._repairs.recall(step.command, step.agent, step.gen, step.memory, step.attempt),
            newest.values(),
            AT_ONCE,
        ):
            if found.why == "ended":
                lost["outcomes"] += 1
                self._outcome_unknown(step.command, step.agent, found)

    async def _recall_streams(self, sessions: Iterable[Session], lost: Counter[str]) -> None:
        """Say which commands are open on links of this node. The agent stops those whose record is gone or over."""
        open_here = [(session, command) for session in sessions for command in tuple(session.streams or ())]
        async for (session, command), found in map_bounded(
            lambda one: self._repairs.recall(one[1], one[0].agent, one[0].gen, one[0].memory), open_here, AT_ONCE
        ):
            if found.why == "ended":
                self._outcome_unknown(command, session.agent, found)
            lost["running commands"] += found.why in ("gone", "ended")
            if found.why in ("gone", "ended", "over"):  # over also if another node has just ended it as lost
                self._stop(session, command)

    def _outcome_unknown(self, command: str, agent: str, found: Recalled) -> None:
        state = TargetState.FAILED.value
        self._completion.completed(command, agent, state, found.followers, "outcome_unknown")

    def _stop(self, session: Session, command: str) -> None:
        if session.stream(command) is not None:
            self._delivery.cancel(session, command, OVER)

    async def _append(self, steps: Sequence[StoredStep], lost: Counter[str]) -> None:
        commands: dict[tuple[str, str], list[StoredStep]] = {}
        for step in steps:
            commands.setdefault((step.command, step.memory), []).append(step)
        still_open: dict[tuple[str, str], int] = {}
        lost_ends: list[list[StoredStep]] = []
        async for key, found in map_bounded(
            lambda key: self._repairs.recall(key[0], commands[key][0].agent, 0, key[1]), commands, AT_ONCE
        ):
            if found.why == "ok":  # others are over, as it was told, or lost
                still_open[key] = found.gen
            elif LostEnds.may_be(found.why, found.state) and ends(commands[key][-1].steps):
                lost_ends.append(commands[key])
        for first, *_ in await self._lost_ends.reopen(lost_ends):
            still_open[first.command, first.memory] = 0
        async for step, stored in map_bounded(
            lambda step: self._repairs.append(
                step.command, step.agent, still_open[step.command, step.memory], step.steps
            ),
            [step for step in steps if (step.command, step.memory) in still_open],
            AT_ONCE,
        ):
            if stored.why == "gap":
                ending = self._repairs.end_without_results(step.command, step.agent, step.steps)
                lost["ends without their results"] += ending is not None and await ending
            elif stored.why == "ok":
                lost["results"] += stored.added
                if TargetState(stored.state).over:
                    lost["ends"] += 1
                    self._completion.notify(step.command, stored.followers)

    async def _end(self, steps: Iterable[Step], lost: Counter[str]) -> None:
        ended = [step for step in steps if isinstance(step, EndedStep)]
        lost_ends: list[list[EndedStep]] = []
        async for step, (why, state) in map_bounded(self._repairs.end, ended, AT_ONCE):
            lost["ends"] += why == "ok"
            if LostEnds.may_be(why, state):
                lost_ends.append([step])
        reopened = [step for (step,) in await self._lost_ends.reopen(lost_ends)]
        async for _, (why, _) in map_bounded(
            lambda step: self._repairs.end(step, truncated=LostEnds.had_results(step)), reopened, AT_ONCE
        ):
            lost["ends"] += why == "ok"
        asked = [step for step in steps if isinstance(step, CancelStep)]
        async for _ in map_bounded(lambda step: self._repairs.ask_cancel(step.command, step.agent), asked, AT_ONCE):
            pass
