"""Rules of commands before an agent has them: posted, dispatched, settled, and looked at by the sweeper."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from msgspec.structs import replace

from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.fleet.command_record import Acceptance, NewRecord
from fairlead.fleet.deadline_queue import TAKEN_MS
from fairlead.fleet.schema import AgentRow
from fairlead.shards import command_shard

from support.fleet.history_play import ALL, Play, Session, again, agents, anyone, living, retains, retries, seldom
from support.fleet.reference import Agent
from support.fleet.script_server import FAR_MS, RETENTION_MS


class Posting(Play):
    """Commands are posted, and open until they are over."""

    @initialize(retry=retries, retain=retains)
    def begin(self, retry: str, retain: str) -> None:
        self._post("a", retry, retain, False, "", False, False)

    def command(self, nth: int) -> str:
        """Mostly one that is open, since there is more to break; if there is none, a new one."""
        among = self.commands if nth >= ALL else self._open()
        if not among:
            self._post("a", "safe", "all", False, "", False, False)
            among = self._open() or self.commands
        return among[-1 - nth % len(among)]

    def _open(self) -> list[str]:
        known = self.model.commands
        return [command for command in self.commands if command in known and not known[command].state.over]

    def rival(self, command: str, nth: int) -> Session:
        """A session of the command's agent, or from `ALL` on of any."""
        agent = self.agent_of(command)
        among = [session for session in self.sessions if session.agent == agent or nth >= ALL]
        return among[-1 - nth % len(among)]

    @rule(
        agent=agents, retry=retries, retain=retains, past=seldom, follower=st.sampled_from(("", "f0#x")),
        offer=st.booleans(), again=again,
    )  # fmt: skip
    def post(
        self, agent: str, retry: str, retain: str, past: bool, follower: str, offer: bool, again: bool
    ) -> None:  # fmt: skip
        self._post(agent, retry, retain, past, follower, offer, again)

    def _post(
        self, agent: str, retry: str, retain: str, past: bool, follower: str, offer: bool, again: bool
    ) -> None:  # fmt: skip
        name, expires = self.agent(agent), self.now + (-1 if past else FAR_MS)
        record = NewRecord(
            self.new_id(name), name, "do", b"payload|1", "bulk", self.now, expires, RETENTION_MS,
            expires, retry, retain, "trace",
        )  # fmt: skip
        self.commands.append(record.id)

        def call() -> None:
            due_at = self.now
            made = self._accepted(record, due_at, follower, offer)
            known = self.model.commands.get(record.id) is not None
            expected = self.model.accept(record, follower, due_at, past=past, offer=offer)
            if isinstance(expected, Agent):
                assert made.why == ("exists" if known else "ok")
                assert made.offered == (offer and not known and bool(expected.lease))
                if made.offered:  # one of many has no more of the row
                    assert made.row is not None
                    assert (made.row.lease, made.row.gen) == (expected.lease, expected.gen)
                else:
                    assert_row(made.row, expected, reported=False)
            elif expected is None:
                assert made == Acceptance("unknown")
            else:
                assert made == Acceptance("full", opened=expected.count)

        self.repeatedly(again, call)

    def _accepted(self, record: NewRecord, due_at: int, follower: str, offer: bool) -> Acceptance:
        """By itself, or as one of many."""
        valid = self.valid(False)
        if not self.one_of_many():
            return self.server.call(lambda: self.records.accept(record, due_at, valid, follower, offer=offer))
        many = self.batches.accept([record], due_at, valid, follower, offer=offer)
        [accepted] = self.server.call(lambda: next(many)[1])
        return accepted

    @rule(nth=living)
    def deadline_passes(self, nth: int) -> None:
        command = self.command(nth)
        found = self.model.commands.get(command)
        if found is None or found.past:
            return
        posted = found.record = replace(found.record, expires=self.now - 1)
        terms = f"{posted.expires}|{posted.retention}|{posted.retry}|{posted.retain}|0"
        self.server.submit("HSET", schema.cmd_key(command), "terms", terms)
        found.past = True

    @rule(nth=anyone, settle=st.booleans(), again=again)
    def dispatch_or_settle(self, nth: int, settle: bool, again: bool) -> None:
        """A second post under one Idempotency-Key, however late; or the sweeper's look at one that is over."""
        command = self.command(nth)
        found = self.model.commands.get(command)
        if found is not None and not (settle and found.state.over):
            self._dispatch(command, again)
        else:
            self._settle(command, again)

    def _closed(self, command: str) -> None:
        """What routing does with a command that is over."""
        found = self.model.commands.get(command)
        if found is not None and found.state.over:
            self._settle(command, False)

    def _dispatch(self, command: str, again: bool) -> bool:
        record = self.model.commands[command].record

        def call() -> None:
            row = self.server.call(
                lambda: self.directory.dispatch(record.agent, command, record.expires, self.valid(False))
            )
            expected = self.model.dispatch(record.agent, command)
            if isinstance(expected, Agent):
                assert isinstance(row, AgentRow)
                assert_row(row, expected, reported=False)
            else:
                assert row == expected

        self.repeatedly(again, call)
        return command in self.model.open_of(record.agent)

    @rule(agent=agents)
    def post_late(self, agent: str) -> None:
        """What the server executes after its caller gave it up changes nothing."""
        name = self.agent(agent)
        record = NewRecord(self.new_id(name), name, "do", b"", "bulk", 0, self.valid(False), 1000, 0)
        with pytest.raises(BusUnavailable, match="too late"):
            self.server.call(lambda: self.records.accept(record, self.now, self.valid(True)))
        assert self.server.call(lambda: self.records.look_up(record.id)) is None
        with pytest.raises(BusUnavailable, match="too late"):
            self.server.call(lambda: self.directory.dispatch(name, record.id, record.expires, self.valid(True)))

    def _settle(self, command: str, again: bool) -> None:
        agent = self.agent_of(command)

        def call() -> None:
            self.server.call(lambda: self.directory.remove_open(agent, command))
            self._done(command, agent)
            self.model.open_of(agent).discard(command)
            self.model.due.pop((command, agent), None)

        self.repeatedly(again, call)

    def _done(self, command: str, agent: str) -> None:
        async def call() -> None:
            self.due.remove(command, agent)
            for reply in self.due.flush():
                await reply

        self.server.run(call())

    # -- the deadline queue -------------------------------------------------------------------------

    @rule(nth=anyone, seconds=st.sampled_from((-5, 0, 600, 1200)), again=again)
    def schedule(self, nth: int, seconds: int, again: bool) -> None:
        self._schedule(self.command(nth), seconds, again)

    def _schedule(self, command: str, seconds: int, again: bool) -> None:
        agent, at = self.agent_of(command), self.now + seconds * 1000

        def call() -> None:
            self.server.call(lambda: self.due.schedule(command, agent, at))
            self.model.schedule(command, agent, at)

        self.repeatedly(again, call)

    @rule(put_off=st.booleans())
    def take(self, put_off: bool) -> None:
        """The sweeper looks, and may then ask for a later look."""
        before = self.server.run(self.server.time())
        found = self.server.call(self.due.take)
        # A history that failed leaves its own behind while shorter ones are looked for.
        taken = {(t.command, t.agent): t.at for t in found.taken if t.agent.startswith(f"{self.name}-")}
        after = self.server.run(self.server.time())
        assert set(taken) <= set(self.model.due)
        assert found.more == []
        for command, agent in taken:
            shard = command_shard(command)
            assert found.next[shard] <= taken[command, agent] + TAKEN_MS
        for key, at in self.model.due.items():
            if key in taken:
                assert max(at, before) <= taken[key] <= after
                self.model.due[key] = taken[key] + TAKEN_MS
            else:
                assert at > before
        self.taken |= taken
        if put_off:
            for command, agent in taken:
                self._put_off(command, agent, taken[command, agent], self.now + FAR_MS, True)

    @rule(nth=anyone, seconds=st.sampled_from((-1, 300)), guess=seldom, again=again)
    def put_off(self, nth: int, seconds: int, guess: bool, again: bool) -> None:
        """By a sweeper that took it long ago, or that is mistaken."""
        command = self.command(nth)
        agent = self.agent_of(command)
        taken = self.now if guess else self.taken.get((command, agent), self.now)
        self._put_off(command, agent, taken, self.now + seconds * 1000, again)

    def _put_off(self, command: str, agent: str, taken: int, at: int, again: bool) -> None:
        def call() -> None:
            done = self.server.call(lambda: self.due.reschedule(command, agent, taken, at))
            assert done == self.model.put_off(command, agent, taken + TAKEN_MS, at)

        self.repeatedly(again, call)


def assert_row(row: AgentRow | None, expected: Agent, *, reported: bool) -> None:
    if not expected.known:
        assert row is None
        return
    assert row is not None
    assert (row.lease, row.gen, row.boot, row.conn, row.sid, row.close, row.drained) == (
        expected.lease, expected.gen, expected.boot, expected.conn, expected.sid, expected.close, expected.drained,
    )  # fmt: skip
    if reported:
        assert msgspec.json.decode(row.facts) == expected.facts
        assert msgspec.json.decode(row.labels) == expected.labels
        assert (row.close, row.unrecorded) == (expected.close, expected.unrecorded)
        assert (row.reason, row.last_failure.partition(" ")[2]) == (expected.reason, expected.last_failure)
