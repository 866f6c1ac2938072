"""Rules of commands that an agent has: fenced, delivered, answered over links old and new, finished and cancelled."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from fairlead.fleet.batches.command_batches import SentSteps
from fairlead.fleet.command_record import AppendResult, CommandRecord, Delivery, Settled, StoredEnd
from fairlead.fleet.commands import accepted as ack
from fairlead.fleet.commands import data, ending
from fairlead.fleet.schema import TargetState
from fairlead.shards import command_shard
from fairlead.store.reply import Arg
from fairlead.telemetry.command_timing import CommandOrigin

from support.fleet.history_play import Session, again, agents, anyone, ends, living, outputs, seldom, shifts, sizes
from support.fleet.history_posting import Posting
from support.fleet.reference import Accepted, Chunk, Command, End, Step
from support.fleet.script_server import FAR_MS


class Outcomes(Posting):
    """What comes of commands, on time or late, from whoever owns them or did."""

    @rule(nth=living, by=st.sampled_from((1, 1, 2, 0, 5)), deliver=st.booleans(), again=again)
    def fence(self, nth: int, by: int, deliver: bool, again: bool) -> None:
        """By any session, however old."""
        command = self.command(nth)
        self._fence(self.rival(command, by), command, again, deliver=deliver)

    @rule(agent=agents, again=again)
    def deliver(self, agent: str, again: bool) -> None:
        self._deliver(self.agent(agent), again)

    def _deliver(self, agent: str, again: bool) -> None:
        """The agent's owner writes to the link what is open."""
        for command in sorted(self.model.open_of(agent)):
            owner = self.owner(command)
            if owner is not None:
                self._fence(owner, command, again, deliver=True)

    def _fence(self, session: Session, command: str, again: bool, *, deliver: bool) -> None:
        s = session

        def call() -> None:
            expected = self.model.fence(command, s.agent, s.gen, s.memory, deliver=deliver)
            if not deliver:
                assert self.server.call(lambda: self.records.take_over(command, s.agent, s.gen, s.memory)) == expected
                return
            found = self.server.call(lambda: self.records.fence(command, s.agent, s.gen, s.memory))
            if not isinstance(found, Delivery):
                assert found == expected
                return
            assert isinstance(expected, Command)
            assert 0 <= found.left <= (0 if expected.past else FAR_MS)
            assert replace(found, left=0) == Delivery(
                expected.state is TargetState.RUNNING, expected.next, expected.attempt, 0, expected.cancel_asked,
                bool(expected.given), expected.record.retry, b"payload|1", "bulk",
                CommandOrigin("do", "trace", 0, expected.record.created),
            )  # fmt: skip

        self.repeatedly(again, call)

    @rule(nth=living, by=st.sampled_from((0, 1, 2, 5)), written=st.booleans(), again=again)
    def end_offer(self, nth: int, by: int, written: bool, again: bool) -> None:
        """By the node of any session, to which it may have been offered."""
        command = self.command(nth)
        s = self.rival(command, by)

        def call() -> None:
            lease = self.server.call(lambda: self.records.end_offer(command, s.agent, s.gen, written=written))
            assert lease == self.model.end_offer(command, s.agent, s.gen, written=written)

        self.repeatedly(again, call)

    @rule(nth=living, shift=shifts, sizes=outputs, unsent=seldom, again=again)
    def append(self, nth: int, shift: int, sizes: list[int], unsent: bool, again: bool) -> None:
        """What an agent sends over its link. `unsent`: Redis has lost that it was sent the command."""
        self._append(self.command(nth), None, shift, sizes, None, 0, unsent, again)

    @rule(nth=anyone, by=anyone, sizes=outputs, end=st.none() | ends, again=again)
    def append_late(self, nth: int, by: int, sizes: list[int], end: TargetState | None, again: bool) -> None:
        """What still comes over a link that has been overtaken, and would fit."""
        command = self.command(nth)
        self._append(command, self.rival(command, by), 0, sizes, end, 0, True, again)

    @rule(nth=living, shift=shifts, sizes=st.lists(sizes, max_size=2), end=ends, again=again)
    def append_end(self, nth: int, shift: int, sizes: list[int], end: TargetState, again: bool) -> None:
        self._append(self.command(nth), None, 0, sizes, end, shift, False, again)

    def _append(
        self, command: str, by: Session | None, shift: int, sizes: list[int], end: TargetState | None, end_shift: int,
        unsent: bool, again: bool,
    ) -> None:  # fmt: skip
        found = self.model.commands.get(command)
        session = by or self.owner(command)
        if session is None:
            return
        if found is not None and found.state is TargetState.QUEUED and not unsent:
            self._fence(session, command, False, deliver=True)
        expected_next = found.next if found is not None else 0
        first = max(0, expected_next + shift)
        steps: list[Step] = [Accepted()]
        for n, size in enumerate(sizes, first):
            steps.append(Chunk(n, "stdout", f"{next(self.serial)}".encode().ljust(size, b".")[:size]))
        if end is not None:
            steps.append(End(max(0, first + len(sizes) + end_shift), end, StoredEnd(b"null", f"how {end}")))
        packed = [arg for step in steps for arg in pack(step)]

        def call() -> None:
            stored = self._stored(command, session, packed)
            expected = self.model.append(command, session.agent, session.gen, steps)
            assert replace(stored, followers=unordered(stored.followers)) == replace(
                expected, followers=unordered(expected.followers)
            )

        self.repeatedly(again, call)
        self._closed(command)

    def _stored(self, command: str, by: Session, steps: list[Arg]) -> AppendResult:
        """By itself, as a whole answer if it is one, or as one of many."""
        if not self.one_of_many():
            return self.server.run(self._stored_alone(command, by, steps))
        sent = [SentSteps(command, by.agent, by.gen, steps)]
        [stored] = self.batches.parse(self.server.call(lambda: self.batches.append(command_shard(command), sent)))
        return stored

    async def _stored_alone(self, command: str, by: Session, steps: list[Arg]) -> AppendResult:
        whole = self.records.append_answer(command, by.agent, by.gen, steps)
        if whole is not None and (stored := await whole) is not None:
            return stored
        return await self.records.append(command, by.agent, by.gen, steps)

    @rule(
        nth=living,
        state=st.sampled_from((TargetState.OFFLINE, TargetState.TIMEOUT, TargetState.FAILED)),
        only_from=st.sampled_from((None, TargetState.QUEUED, TargetState.SENT)),
        again=again,
    )
    def finish(self, nth: int, state: TargetState, only_from: TargetState | None, again: bool) -> None:
        command, how = self.command(nth), StoredEnd(code="code", message=f"ended as {state}", details={"n": 1})
        agent = self.agent_of(command)

        def call() -> None:
            done = self.server.run(self.records.finish(command, agent, state, how, only_from))
            assert_settled(done, self.model.finish(command, agent, state, how, only_from))

        self.repeatedly(again, call)
        self._closed(command)

    @rule(nth=anyone, late=st.sampled_from((None, 0, 1_000, FAR_MS)), again=again)
    def time_out(self, nth: int, late: int | None, again: bool) -> None:
        """The sweeper looks, so many ms after the deadline; None for a moment before."""
        command = self.command(nth)
        agent, how = self.agent_of(command), StoredEnd(code="deadline", message="it was too late")

        def call() -> None:
            target = self.model.target(command, agent)
            expires = target.record.expires if target is not None else 0
            at = expires - 1 if late is None else expires + late
            (found,) = self.server.call(lambda: self.records.time_out([(command, agent, at)], how))
            if isinstance(found, CommandRecord):
                assert target is not None
                assert not target.state.over
                assert late is None or target.state is TargetState.QUEUED
                (read,) = found.targets
                assert (read.agent, read.state, read.attempt) == (agent, target.state, target.attempt)
                assert (found.expires, found.hold_until) == (target.record.expires, target.record.hold_until)
                assert (bool(found.cancel_asked), found.has_input) == (target.cancel_asked, bool(target.given))
                return
            assert isinstance(found, Settled)
            if found.why == "over":
                assert target is not None
                assert (found.state, sorted(found.followers)) == (target.state, sorted(target.followers))
                return
            expected = self.model.finish(command, agent, TargetState.TIMEOUT, how, None, settled=False)
            why = "ended" if expected.why == "ok" else expected.why
            assert_settled(found, replace(expected, why=why))
            assert (found.origin is not None) == (why == "ended")

        self.repeatedly(again, call)
        self._closed(command)

    @rule(nth=living, again=again)
    def cancel(self, nth: int, again: bool) -> None:
        command = self.command(nth)
        agent = self.agent_of(command)

        def call() -> None:
            assert_settled(self.server.run(self.records.cancel(command, agent)), self.model.cancel(command, agent))

        self.repeatedly(again, call)
        self._closed(command)


def assert_settled(done: Settled, expected: Settled) -> None:
    assert (done.why, sorted(done.followers)) == (expected.why, sorted(expected.followers))


def unordered(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names))


def pack(step: Step) -> tuple[Arg, ...]:
    match step:
        case Accepted():
            return ack()
        case Chunk(n, kind, payload):
            return data(n, kind, payload)
        case End(total, state, how):
            return ending(total, state, how)
