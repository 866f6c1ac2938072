"""The machine that makes histories of nodes that claim, deliver, store and come too late.

Played by test_model.py. Every step makes one call on the server and in the reference and compares the answers;
after every step all that can be read back is compared as well. Any call may be made twice, as by a node that lost
the answer: the second must change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import msgspec
import pytest
from fleet_world import FAR_MS, INPUT_LIMIT, OPEN_LIMIT, OUTPUT_LIMIT, RETENTION_MS, World
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from reference import Accepted, Agent, Chunk, Command, End, Reference, Step

from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.fleet.command import Beyond, Delivery, Ending, Page, Record, Settled
from fairlead.fleet.commands import Commands, data, ending
from fairlead.fleet.commands import accepted as ack
from fairlead.fleet.directory import Claimed, Directory
from fairlead.fleet.due import TAKEN_MS, Due
from fairlead.fleet.schema import AgentRow, State
from fairlead.store.reply import Arg, Reply, integer, items, octets, table, text
from fairlead.telemetry.timing import Origin


@dataclass
class Session:
    """One link of one start of an agent, at one node. `gen` is what its last claim was answered."""

    agent: str
    boot: str
    memory: str
    conn: int
    sid: str
    lease: str
    gen: int = 0


NO_KEY = -2
"""What PTTL says of one that is not there."""
again = st.booleans()
living = st.sampled_from((0, 0, 1, 2, 5))
anyone = st.sampled_from((0, 1, 4, 5, 6))
"""Commands and sessions are counted from the newest; from `ALL` on among those that are over as well."""
ALL = 4
agents = st.sampled_from("aaab")
seldom = st.sampled_from((False, False, False, True))
sizes = st.sampled_from((0, 1, 7, 30, 60))
outputs = st.lists(sizes, min_size=1, max_size=3) | st.just([1] * 40)
"""read.lua takes 32 entries in a step."""
inputs = st.lists(sizes, min_size=1, max_size=3)
shifts = st.sampled_from((0, 0, 0, 0, 1, -1, -2))
"""Chunk numbers relative to the next one: gaps and what was sent before."""
ends = st.sampled_from((State.OK, State.FAILED, State.TIMEOUT, State.CANCELLED))
leases = st.sampled_from(("n1#a", "n1#b", "n2#a"))
retries = st.sampled_from(("safe", "never"))
retains = st.sampled_from(("all", "window"))


class History(RuleBasedStateMachine):
    """What nodes may do, in any order, on time or late."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.name = next(world.names)
        self.now = world.run(world.time())
        self.directory = Directory(world.store)
        self.records = Commands(world.store, OUTPUT_LIMIT)
        self.due = Due(world.store)
        self.model = Reference(OPEN_LIMIT, OUTPUT_LIMIT, INPUT_LIMIT)
        self.serial = count(1)
        self.sessions: list[Session] = []
        self.commands: list[str] = []
        self.taken: dict[tuple[str, str], int] = {}
        for agent in "ba":
            self._connect(agent, "x", "n1#a", False)

    @initialize(retry=retries, retain=retains)
    def begin(self, retry: str, retain: str) -> None:
        self._post("a", retry, retain, False, "", False)

    def valid(self, late: bool) -> int:
        return self.now - 1 if late else self.now + FAR_MS

    def agent(self, short: str) -> str:
        return f"{self.name}-{short}"

    def session(self, nth: int) -> Session:
        return self.sessions[-1 - nth % len(self.sessions)]

    def command(self, nth: int) -> str:
        """Mostly one that is open, since there is more to break; if there is none, a new one."""
        among = self.commands if nth >= ALL else self._open()
        if not among:
            self._post("a", "safe", "all", False, "", False)
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

    def owner(self, command: str) -> Session | None:
        """Who claimed the command's agent last."""
        sid = self.model.agent(self.agent_of(command)).sid
        return next((session for session in self.sessions if session.sid == sid), None)

    def agent_of(self, command: str) -> str:
        found = self.model.commands.get(command)
        return found.record.agent if found is not None else self.agent("a")

    def repeatedly(self, again: bool, call: Callable[[], None]) -> None:
        """Make a call, and once more as a node does that lost the answer."""
        call()
        if again:
            before = self.model.seen()
            call()
            assert self.model.seen() == before

    # -- links -------------------------------------------------------------------------------------

    @rule(agent=agents, boot=st.sampled_from("xxxy"), lease=leases, deliver=st.booleans(), again=again)
    def connect(self, agent: str, boot: str, lease: str, deliver: bool, again: bool) -> None:
        """A link, with all that a node does before and behind its welcome. Each start has a memory of its own."""
        self._connect(agent, boot, lease, again)
        if deliver:
            self._deliver(self.agent(agent), again)

    @rule(agent=agents, times=st.integers(2, 7))
    def crash(self, agent: str, times: int) -> None:
        """An agent that dies of what it is sent, each time."""
        for n in range(times):
            self._connect(agent, f"crash {n % 2}", "n1#a", False)
            self._deliver(self.agent(agent), False)

    def _connect(self, agent: str, boot: str, lease: str, again: bool) -> None:
        name = self.agent(agent)
        boot = f"{name}-{boot}"
        conn = 1 + sum(session.boot == boot for session in self.sessions)
        session = Session(name, boot, f"memory|of {boot}", conn, f"s{next(self.serial)}", lease)
        self.sessions.append(session)
        self.repeatedly(again, lambda: self._claim(session, False, None))
        for command in sorted(self.model.open_of(name)):
            self._fence(session, command, again, deliver=False)

    @rule(nth=anyone, own=st.booleans(), late=seldom, ahead=seldom, again=again)
    def claim(self, nth: int, own: bool, late: bool, ahead: bool, again: bool) -> None:
        """By a link that may have been overtaken; or, with its `own` generation, by a node that doubts its rows, which
        may be of a time before Redis's clock was put back."""
        session = self.session(nth)
        own_gen = session.gen + (FAR_MS if ahead else 0) if own else None
        self.repeatedly(again, lambda: self._claim(session, late, own_gen))

    def _claim(self, session: Session, late: bool, own_gen: int | None) -> None:
        s, before = session, self.model.agent(session.agent).gen
        facts = {"conn": str(s.conn)} if own_gen is None else {}
        found = self.world.call(
            lambda: self.directory.claim(
                s.agent, s.lease, s.boot, s.conn, s.sid, facts, self.valid(late), own_gen=own_gen
            )
        )
        now = found.now if isinstance(found, Claimed) else 0
        expected = self.model.claim(s.agent, s.lease, s.boot, s.conn, s.sid, facts, own_gen, late=late, now=now)
        if isinstance(found, Claimed):
            assert found.gen > max(before, own_gen or 0)
            assert found.now >= self.now
            found = replace(found, open=sorted(found.open))
            session.gen = found.gen
        assert found == expected

    @rule(nth=anyone, close=st.sampled_from((1000, 4000)), drained=st.booleans(), again=again)
    def release(self, nth: int, close: int, drained: bool, again: bool) -> None:
        session = self.session(nth)

        def call() -> None:
            ending = session.agent, session.sid, close, drained, f"why {close}"
            assert self.world.call(lambda: self.directory.release(*ending)) == self.model.release(*ending)

        self.repeatedly(again, call)

    @rule(agent=agents, lease=leases, how=st.sampled_from(("label", "trouble", "seen lately", "absent", "lost")))
    def forget_or_note(self, agent: str, lease: str, how: str) -> None:
        """What happens to a row beside its claims."""
        name = self.agent(agent)
        row = self.model.agents.get(name)
        if how == "label":
            labels = self.world.call(lambda: self.directory.label(name, {"lease": lease, "other": None}))
            if row is not None:
                row.labels = {"lease": lease}
            assert labels == (row.labels if row is not None else None)
        elif how == "trouble":
            self.world.call(lambda: self.directory.note_trouble(name, f"trouble with {lease}"))
            if row is not None:
                row.trouble = f"trouble with {lease}"
        elif how == "lost":  # by a Redis that was killed, with what was open
            self.world.submit("DEL", schema.agent_key(name), schema.open_key(name))
            self.model.agents.pop(name, None)
            self.model.open_of(name).clear()
        else:  # the sweep looks, having judged this lease dead
            before = self.now + (-FAR_MS if how == "seen lately" else FAR_MS)
            judged = row.lease if row is not None and how == "seen lately" else lease
            expected = self.model.forget(name, judged, long_ago=before > self.now)
            assert self.world.run(self.directory.forget(name, before, judged)) == expected

    # -- commands ----------------------------------------------------------------------------------

    @rule(agent=agents, retry=retries, retain=retains, past=seldom, follower=st.sampled_from(("", "f0#x")), again=again)
    def post(self, agent: str, retry: str, retain: str, past: bool, follower: str, again: bool) -> None:
        """As routing does it: when to look, the record, then into the open ones; taken back if that is refused."""
        self._post(agent, retry, retain, past, follower, again)

    def _post(self, agent: str, retry: str, retain: str, past: bool, follower: str, again: bool) -> None:
        name, expires = self.agent(agent), self.now + (-1 if past else FAR_MS)
        record = Record(
            f"{self.name}-c{next(self.serial)}", name, "do", b"payload|1", "bulk", self.now, expires, RETENTION_MS,
            expires, retry, retain, "trace",
        )  # fmt: skip
        self.commands.append(record.id)

        def call() -> None:
            made = self.world.call(lambda: self.records.create(record, self.valid(False), follower))
            assert made == self.model.create(record, follower, past=past)

        self.repeatedly(again, call)
        self._schedule(record.id, 0, again)
        if not self._dispatch(record.id, again):
            self._settle(record.id, again)
            self.world.call(lambda: self.records.discard(record.id))
            del self.model.commands[record.id]

    @rule(nth=living)
    def deadline_passes(self, nth: int) -> None:
        command = self.command(nth)
        found = self.model.commands.get(command)
        if found is None or found.past:
            return
        posted = found.record = replace(found.record, expires=self.now - 1)
        terms = f"{posted.expires}|{posted.retention}|{posted.retry}|{posted.retain}"
        self.world.submit("HSET", schema.cmd_key(command), "terms", terms)
        found.past = True

    @rule(nth=anyone, settle=st.booleans(), again=again)
    def dispatch_or_settle(self, nth: int, settle: bool, again: bool) -> None:
        """A second post under one Idempotency-Key, however late; or the keeper's look at one that is over."""
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
            row = self.world.call(
                lambda: self.directory.dispatch(record.agent, command, record.expires, self.valid(False))
            )
            expected = self.model.dispatch(record.agent, command)
            if isinstance(expected, Agent):
                assert isinstance(row, AgentRow)
                assert_row(row, expected, told=False)
            else:
                assert row == expected

        self.repeatedly(again, call)
        return command in self.model.open_of(record.agent)

    @rule(agent=agents)
    def post_late(self, agent: str) -> None:
        """What the server executes after its caller gave it up changes nothing."""
        name = self.agent(agent)
        record = Record(f"{self.name}-late", name, "do", b"", "bulk", 0, self.valid(False), 1000, 0)
        with pytest.raises(BusUnavailable, match="too late"):
            self.world.call(lambda: self.records.create(record, self.valid(True)))
        assert self.world.call(lambda: self.records.look_up(record.id)) is None
        with pytest.raises(BusUnavailable, match="too late"):
            self.world.call(lambda: self.directory.dispatch(name, record.id, record.expires, self.valid(True)))

    def _settle(self, command: str, again: bool) -> None:
        agent = self.agent_of(command)

        def call() -> None:
            self.world.call(lambda: self.directory.settle(agent, command))
            self.world.call(lambda: self.due.done(command, agent))
            self.model.open_of(agent).discard(command)
            self.model.due.pop((command, agent), None)

        self.repeatedly(again, call)

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
                assert self.world.call(lambda: self.records.take_over(command, s.agent, s.gen, s.memory)) == expected
                return
            found = self.world.call(lambda: self.records.fence(command, s.agent, s.gen, s.memory))
            if not isinstance(found, Delivery):
                assert found == expected
                return
            assert isinstance(expected, Command)
            assert 0 <= found.left <= (0 if expected.past else FAR_MS)
            assert replace(found, left=0) == Delivery(
                expected.state is State.RUNNING, expected.next, expected.attempt, 0, expected.cancel_asked,
                bool(expected.given), expected.record.retry, b"payload|1", "bulk",
                Origin("do", "trace", 0, expected.record.created),
            )  # fmt: skip

        self.repeatedly(again, call)

    @rule(nth=living, shift=shifts, sizes=outputs, unsent=seldom, again=again)
    def append(self, nth: int, shift: int, sizes: list[int], unsent: bool, again: bool) -> None:
        """What an agent sends over its link. `unsent`: Redis has lost that it was sent the command."""
        self._append(self.command(nth), None, shift, sizes, None, 0, unsent, again)

    @rule(nth=anyone, by=anyone, sizes=outputs, end=st.none() | ends, again=again)
    def append_late(self, nth: int, by: int, sizes: list[int], end: State | None, again: bool) -> None:
        """What still comes over a link that has been overtaken, and would fit."""
        command = self.command(nth)
        self._append(command, self.rival(command, by), 0, sizes, end, 0, True, again)

    @rule(nth=living, shift=shifts, sizes=st.lists(sizes, max_size=2), end=ends, again=again)
    def append_end(self, nth: int, shift: int, sizes: list[int], end: State, again: bool) -> None:
        self._append(self.command(nth), None, 0, sizes, end, shift, False, again)

    def _append(
        self, command: str, by: Session | None, shift: int, sizes: list[int], end: State | None, end_shift: int,
        unsent: bool, again: bool,
    ) -> None:  # fmt: skip
        found = self.model.commands.get(command)
        session = by or self.owner(command)
        if session is None:
            return
        if found is not None and found.state is State.QUEUED and not unsent:
            self._fence(session, command, False, deliver=True)
        expected_next = found.next if found is not None else 0
        first = max(0, expected_next + shift)
        steps: list[Step] = [Accepted()]
        for n, size in enumerate(sizes, first):
            steps.append(Chunk(n, "stdout", f"{next(self.serial)}".encode().ljust(size, b".")[:size]))
        if end is not None:
            steps.append(End(max(0, first + len(sizes) + end_shift), end, Ending(b"null", f"how {end}")))
        packed = [arg for step in steps for arg in pack(step)]

        def call() -> None:
            stored = self.world.call(lambda: self.records.append(command, session.agent, session.gen, packed))
            expected = self.model.append(command, session.agent, session.gen, steps)
            assert replace(stored, followers=unordered(stored.followers)) == replace(
                expected, followers=unordered(expected.followers)
            )

        self.repeatedly(again, call)
        self._closed(command)

    @rule(
        nth=living,
        state=st.sampled_from((State.OFFLINE, State.TIMEOUT, State.FAILED)),
        only_from=st.sampled_from((None, State.QUEUED, State.SENT)),
        again=again,
    )
    def finish(self, nth: int, state: State, only_from: State | None, again: bool) -> None:
        command, how = self.command(nth), Ending(code="code", message=f"ended as {state}", details={"n": 1})
        agent = self.agent_of(command)

        def call() -> None:
            done = self.world.run(self.records.finish(command, agent, state, how, only_from))
            assert_settled(done, self.model.finish(command, agent, state, how, only_from))

        self.repeatedly(again, call)
        self._closed(command)

    @rule(nth=living, again=again)
    def cancel(self, nth: int, again: bool) -> None:
        command = self.command(nth)
        agent = self.agent_of(command)

        def call() -> None:
            assert_settled(self.world.run(self.records.cancel(command, agent)), self.model.cancel(command, agent))

        self.repeatedly(again, call)
        self._closed(command)

    # -- input -------------------------------------------------------------------------------------

    @rule(nth=living, shift=shifts, sizes=inputs, end=seldom, again=again)
    def give(self, nth: int, shift: int, sizes: list[int], end: bool, again: bool) -> None:
        command = self.command(nth)
        agent, first = self.agent_of(command), max(0, self._given(command) + shift)
        chunks = [(f"{next(self.serial)}".encode().ljust(size, b".")[:size], False) for size in sizes]
        if end:
            chunks[-1] = b"", True
        for n, (payload, last) in enumerate(chunks, first):

            def call(n: int = n, payload: bytes = payload, last: bool = last) -> None:
                stored = self.world.call(lambda: self.records.add_input(command, agent, n, payload, last))
                assert stored == self.model.add_input(command, agent, n, payload, last)

            self.repeatedly(again, call)

    @rule(nth=living, shift=shifts, again=again)
    def consume(self, nth: int, shift: int, again: bool) -> None:
        command = self.command(nth)
        found, n = self.model.commands.get(command), max(0, self._given(command) + shift)

        def call() -> None:
            made_room = self.model.consume_input(command, n)
            left = integer(self.world.call(lambda: self.records.consume_input(command, n)))
            if made_room and found is not None:
                assert left == found.waiting

        self.repeatedly(again, call)

    def _given(self, command: str) -> int:
        found = self.model.commands.get(command)
        return len(found.given) if found is not None else 0

    # -- readers -----------------------------------------------------------------------------------

    @rule(nth=anyone, offset=st.integers(0, 6), size=st.sampled_from((0, 1, 40, 1000)))
    def read(self, nth: int, offset: int, size: int) -> None:
        self._read(self.command(nth), offset, size, 0)

    @rule(nth=anyone, ahead=st.integers(0, 4), again=again)
    def read_on(self, nth: int, ahead: int, again: bool) -> None:
        """A reader that has all but the last `ahead`."""
        command = self.command(nth)
        found = self.model.commands.get(command)
        offset = max(0, len(found.stored) - ahead) if found is not None else 0

        def call() -> None:
            self.model.read_behind(command, offset)
            self._read(command, offset, 1000, offset)

        self.repeatedly(again, call)

    def _read(self, command: str, offset: int, size: int, behind: int) -> None:
        found = self.model.commands.get(command)
        page = self.world.call(lambda: self.records.read(command, offset, size, "", behind))
        assert (page is None) == (found is None)
        if page is None or found is None:
            return
        if isinstance(page, Beyond):
            assert page == Beyond(False, len(found.stored)) or (
                page.trimmed and offset < page.edge <= found.behind
            )  # fmt: skip
            assert page.trimmed or offset > len(found.stored)
            return
        assert offset <= len(found.stored)
        wanted = found.stored[offset:]
        got = [(result.n, result.kind, result.payload) for result in page.results]
        assert [result.offset for result in page.results] == list(range(offset, offset + len(got)))
        assert {result.agent for result in page.results} <= {found.record.agent}
        assert got == wanted[: len(got)]
        assert (page.seq, page.held) == (len(found.stored), found.size if found.window else -1)
        if len(got) < len(wanted):
            assert sum(len(payload) for _, _, payload in got) >= size
        assert (page.ended is not None) == (found.state.over and len(got) == len(wanted))

    @rule(nth=anyone, first=st.integers(0, 20), count=st.sampled_from((1, 2, 17)), again=again)
    def follow(self, nth: int, first: int, count: int, again: bool) -> None:
        command = self.command(nth)
        for name in (f"f{first + n}#x" for n in range(count)):

            def call(name: str = name) -> None:
                self.model.follow(command, name)
                self.world.call(lambda: self.records.read(command, 0, 1, name))

            self.repeatedly(again, call)

    # -- the keeper's list -------------------------------------------------------------------------

    @rule(nth=anyone, seconds=st.sampled_from((-5, 0, 600, 1200)), again=again)
    def schedule(self, nth: int, seconds: int, again: bool) -> None:
        self._schedule(self.command(nth), seconds, again)

    def _schedule(self, command: str, seconds: int, again: bool) -> None:
        agent, at = self.agent_of(command), self.now + seconds * 1000

        def call() -> None:
            self.world.call(lambda: self.due.schedule(command, agent, at))
            self.model.schedule(command, agent, at)

        self.repeatedly(again, call)

    @rule(put_off=st.booleans())
    def take(self, put_off: bool) -> None:
        """The keeper looks, and may then ask for a later look."""
        before = self.world.run(self.world.time())
        found = self.world.call(self.due.take)
        # A history that failed leaves its own behind while shorter ones are looked for.
        taken = {(t.command, t.agent): t.at for t in found if t.command.startswith(f"{self.name}-c")}
        after = self.world.run(self.world.time())
        assert set(taken) <= set(self.model.due)
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
        """By a keeper that took it long ago, or that is mistaken."""
        command = self.command(nth)
        agent = self.agent_of(command)
        taken = self.now if guess else self.taken.get((command, agent), self.now)
        self._put_off(command, agent, taken, self.now + seconds * 1000, again)

    def _put_off(self, command: str, agent: str, taken: int, at: int, again: bool) -> None:
        def call() -> None:
            done = self.world.call(lambda: self.due.put_off(command, agent, taken, at))
            assert done == self.model.put_off(command, agent, taken + TAKEN_MS, at)

        self.repeatedly(again, call)

    # -- what can be read back ---------------------------------------------------------------------

    @invariant()
    def everything_agrees(self) -> None:
        self.world.run(self._compare())

    async def _compare(self) -> None:
        store, names, ids = self.world.store, [self.agent(short) for short in "ab"], list(self.model.commands)
        rows = [self.directory.look_up(name) for name in names]
        opened = [store.submit("HKEYS", schema.open_key(name)) for name in names]
        exist = [store.submit("EXISTS", schema.agent_key(name)) for name in names]
        found = [self.records.look_up(id_) for id_ in ids]
        following = [store.submit("HGET", schema.cmd_key(id_), "w") for id_ in ids]
        sums = [store.submit("HGET", schema.cmd_key(id_), "sum") for id_ in ids]
        pages = [self.records.read(id_, self.model.commands[id_].behind, 1 << 20) for id_ in ids]
        inputs = [store.submit("XRANGE", schema.in_key(id_), "-", "+") for id_ in ids]
        lives = [
            [store.submit("PTTL", key(id_)) for key in (schema.cmd_key, schema.out_key, schema.in_key)] for id_ in ids
        ]
        due = [
            store.submit("ZSCORE", schema.due_key(schema.due_shard(id_)), f"{id_} {self.agent_of(id_)}") for id_ in ids
        ]
        for name, row, commands, exists in zip(names, rows, opened, exist, strict=True):
            assert await exists == self.model.agent(name).known
            assert_row(await row, self.model.agent(name), told=True)
            assert {text(command) for command in items(await commands)} == self.model.open_of(name)
        for n, id_ in enumerate(ids):
            model, command = self.model.commands[id_], await found[n]
            assert command is not None
            (target,) = command.targets
            assert (target.agent, target.state, target.gen, target.next, target.attempt, target.ending) == (
                model.record.agent, model.state, model.gen, model.next, model.attempt, model.ending,
            )  # fmt: skip
            assert (command.seq, command.truncated, command.has_input, bool(command.cancel_asked)) == (
                len(model.stored), model.truncated, bool(model.given), model.cancel_asked,
            )  # fmt: skip
            posted = model.record
            assert (command.agent, command.method, command.lane, command.created, command.expires) == (
                posted.agent, posted.method, posted.lane, posted.created, posted.expires,
            )  # fmt: skip
            counts = octets(await sums[n]).split(b"|")
            assert counts == [
                b"%d" % part for part in (not model.state.over, len(model.stored), model.size, model.truncated)
            ]
            assert set(text(await following[n]).split()) == set(model.followers)
            page = await pages[n]
            assert isinstance(page, Page)
            assert [(r.n, r.kind, r.payload) for r in page.results] == model.stored[model.behind :]
            assert (page.ended is not None) == model.state.over
            assert chunks_of(await inputs[n], model.consumed) == model.given[model.consumed :]
            record_life, *others = [integer(await life) for life in lives[n]]
            assert 0 < record_life <= FAR_MS + RETENTION_MS + 60_000
            assert all(life == NO_KEY or life > record_life - 5_000 for life in others)
            score = await due[n]
            at = self.model.due.get((id_, posted.agent))
            assert (None if score is None else float(octets(score))) == at

    def teardown(self) -> None:
        """No history is left in the keeper's list; every reader gets the same from every offset."""
        for command, agent in self.model.due:
            self.world.call(lambda key=(command, agent): self.due.done(*key))  # type: ignore[misc]
        for command, found in self.model.commands.items():
            self._read(command, 0, 0, 0)
            for offset in range(len(found.stored) + 1):
                self._read(command, offset, 1000, 0)


def assert_row(row: AgentRow | None, expected: Agent, *, told: bool) -> None:
    if not expected.known:
        assert row is None
        return
    assert row is not None
    assert (row.lease, row.gen, row.boot, row.conn, row.sid, row.close, row.drained) == (
        expected.lease, expected.gen, expected.boot, expected.conn, expected.sid, expected.close, expected.drained,
    )  # fmt: skip
    if told:
        assert msgspec.json.decode(row.facts) == expected.facts
        assert msgspec.json.decode(row.labels) == expected.labels
        assert (row.reason, row.trouble.partition(" ")[2]) == (expected.reason, expected.trouble)


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


def chunks_of(reply: Reply, first: int) -> list[tuple[bytes, bool]]:
    """Input as it lies in the stream, from chunk `first` on."""
    chunks = []
    for entry in items(reply):
        entry_id, flat = items(entry)
        if int(octets(entry_id).partition(b"-")[0]) > first:
            fields = table(flat)
            chunks.append((fields[b"p"], fields[b"e"] == b"1"))
    return chunks
