"""The agent's end of a link: whatever is lost in between, each side's store has everything once and in order.

The heart is a machine of random histories: commands that write and read, a gateway that stores and grants when it
likes, links that break with messages on the wire, and a process that dies and leaves its memory to the next. It is
judged by a store of its own and by the gateway's state machine, which raises at the first gap, repetition or byte
beyond the credit.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import ProtocolViolation, Unavailable
from fairlead.wire.agent_link import FINISHED, AgentLink, Outbox
from fairlead.wire.gateway_link import Act, GatewayLink
from fairlead.wire.messages import (
    Ack,
    Chunk,
    Cmd,
    Credit,
    End,
    Event,
    FromAgent,
    FromGateway,
    Hello,
    Limits,
    Numbered,
    Rx,
    Welcome,
)

WINDOW = 64
SMALL = 32
COMMANDS = ("A", "B")
commands = st.sampled_from(COMMANDS)
sizes = st.integers(0, SMALL // 2)
"""A window moves in halves: a larger chunk could wait for ever."""
some = st.integers(1, 6)
STEPS = st.one_of(
    st.tuples(st.just("produce"), commands, sizes),
    st.tuples(st.just("feed"), commands, sizes),
    st.tuples(st.just("take"), commands, st.booleans()),
    st.tuples(st.just("agent_reads"), some),
    st.tuples(st.just("gateway_reads"), some),
    st.tuples(st.just("gateway_stores"), some),
    st.tuples(st.sampled_from(("lose", "resume", "resume", "die")), st.integers(0, 4), st.integers(0, 4)),
    st.tuples(st.sampled_from(("end", "emit")), commands),
)


def welcome(have: dict[str, int] | None = None, window: int = WINDOW) -> Welcome:
    return Welcome(sid="s", gen=1, now=0, hb=1, have=have or {}, limits=Limits(window=window))


def linked(outbox: Outbox, have: dict[str, int] | None = None) -> AgentLink:
    link = AgentLink(outbox)
    link.receive(welcome(have))
    return link


def payload(command: str, n: int, size: int) -> bytes:
    """Octets that name their place, so that a mix-up shows."""
    return f"{command}{n}:".encode().ljust(size, b".")[:size]


# -- any interleaving ------------------------------------------------------------------------------


class Ledger:
    """A memory: what the outbox tells it is all that the next process gets."""

    def __init__(self) -> None:
        self.pending: dict[str, list[Chunk | End]] = {}
        self.next: dict[str, int] = {}
        self.read: set[str] = set()
        self.finished: list[str] = []
        self.events: dict[str, Event] = {}
        self.full = False

    def accept(self, command: str) -> None:
        self.pending[command], self.next[command] = [], 0

    def keep(self, message: Chunk | End | Event) -> None:
        if isinstance(message, Event):
            self.events[message.id] = message
            return
        if isinstance(message, End):
            self.next[message.id] = message.total
        elif self.full:
            raise Unavailable("full")
        else:
            assert message.n == self.next[message.id]
            self.next[message.id] += 1
        self.pending[message.id].append(message)

    def took(self, command: str) -> None:
        self.read.add(command)

    def stored(self, command: str, count: int) -> None:
        kept = self.pending[command]
        self.pending[command] = [m for m in kept if isinstance(m, End) or m.n >= count]

    def over(self, command: str) -> None:
        del self.pending[command]
        self.finished.append(command)

    def told(self, event: str) -> None:
        del self.events[event]

    def outbox(self) -> Outbox:
        """That of the next process: what ran has ended."""
        made = Outbox(self)
        for command in self.finished:
            made.finished(command)
        for command, pending in self.pending.items():
            stream = made.restored(command, self.next[command], pending)
            if not stream.ended:
                stream.end("error")
            made.finished(command)
        made.events.update(self.events)
        return made


class History:
    """One agent's process, one gateway with a store, and the wire between them, which is lost now and then."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.outbox = Outbox(self.ledger)
        self.produced: dict[str, list[bytes]] = {c: [] for c in COMMANDS}
        self.ended: set[str] = set()
        self.events: list[str] = []
        self.taken: dict[str, list[bytes]] = {c: [] for c in COMMANDS}
        # The gateway's store
        self.stored: dict[str, list[bytes]] = {c: [] for c in COMMANDS}
        self.over: set[str] = set()
        self.stored_events: list[str] = []
        self.fed: dict[str, list[bytes]] = {c: [] for c in COMMANDS}
        self.forgotten: dict[str, int] = dict.fromkeys(COMMANDS, 0)
        """Input before this chunk was granted: the gateway cannot send it again."""
        # The link, if there is one
        self.conn = 0
        self.agent: AgentLink | None = None
        self.gateway = GatewayLink(WINDOW)
        self.up: deque[FromAgent] = deque()
        self.down: deque[FromGateway] = deque()
        self.unstored: deque[tuple[Numbered, Act]] = deque()

        self.resume(0, 0)
        for command in COMMANDS:
            self.gateway.opened(command)
            self.ledger.accept(command)
            self.outbox.opened(Cmd(id=command, method="m", credit=WINDOW), WINDOW)
            self.write(Ack(id=command))

    def write(self, message: Numbered) -> None:
        """What a session does: write it if there is a link."""
        if self.agent is not None:
            self.agent.written(message)
            self.up.append(message)

    # -- the agent's process

    def produce(self, command: str, size: int) -> None:
        stream = self.outbox.streams.get(command)
        if stream is None or stream.ended or stream.room < size:
            return
        data = payload(command, stream.next, size)
        self.produced[command].append(data)
        self.write(stream.chunk("stdout", data))

    def end(self, command: str) -> None:
        stream = self.outbox.streams.get(command)
        if stream is not None and not stream.ended:
            self.ended.add(command)
            made = stream.end("ok")
            self.outbox.finished(command)
            if not stream.held:
                self.write(made)

    def emit(self, _: str) -> None:
        event = Event(id=f"e{len(self.events)}", type="t")
        self.events.append(event.id)
        self.outbox.occurred(event)
        self.write(event)

    def take(self, command: str, settle: bool) -> None:
        """The handler reads."""
        stream = self.outbox.streams.get(command)
        if stream is None or stream.ended or not stream.input:
            return
        data, credit = stream.take()
        self.taken[command].append(data)
        if credit is None and settle:
            credit = stream.settle()
        if credit is not None and self.agent is not None:
            self.up.append(credit)

    def agent_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.down))):
            assert self.agent is not None
            self.agent.receive(self.down.popleft())
            released, self.agent.released = self.agent.released, []
            for message in released:
                self.write(message)

    # -- the gateway

    def gateway_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.up))):
            message = self.up.popleft()
            act = self.gateway.receive(message)  # raises when the agent breaks the protocol
            if isinstance(message, Credit):
                stream = self.gateway.stream(message.id)
                if act is Act.GRANT and stream is not None:
                    assert stream.input_room <= self.gateway.window, "granted more than was sent on this link"
                    self.forgotten[message.id] = max(self.forgotten[message.id], stream.input_consumed)
            elif isinstance(message, Ack | Chunk | End | Event):
                self.unstored.append((message, act))

    def gateway_stores(self, count: int) -> None:
        done = min(count, len(self.unstored))
        if not done:
            return
        credits = [credit for _ in range(done) if (credit := self._store()) is not None]
        self.down.append(self.gateway.store(done))
        self.down.extend(credits)

    def _store(self) -> Credit | None:
        message, act = self.unstored.popleft()
        if act is Act.SKIP:
            return None
        if isinstance(message, Chunk):
            assert message.n == len(self.stored[message.id])
            self.stored[message.id].append(message.payload)
            return self.gateway.repay(message.id, len(message.payload))
        if isinstance(message, End):
            assert message.total == len(self.stored[message.id])
            self.over.add(message.id)
            self.gateway.ended(message.id)
        elif isinstance(message, Event) and message.id not in self.stored_events:
            self.stored_events.append(message.id)
        return None

    def feed(self, command: str, size: int) -> None:
        stream = self.gateway.stream(command) if self.agent is not None else None
        if stream is None:
            return
        if stream.input_next < len(self.fed[command]):
            data = self.fed[command][stream.input_next]
        else:
            data = payload(command.lower(), stream.input_next, size)
        if len(data) > stream.input_room:
            return
        if stream.input_next == len(self.fed[command]):
            self.fed[command].append(data)
        self.down.append(Chunk(id=command, n=stream.input_next, kind="stdin", payload=data))
        stream.fed(len(data))

    # -- the wire

    def lose(self, read: int, stored: int) -> None:
        """The link breaks. Some that was on the wire was still read, and some of it stored; no receipt arrives."""
        if self.agent is None:
            return
        self.gateway_reads(read)
        for _ in range(min(stored, len(self.unstored))):
            self._store()
        self.agent = None
        self.up.clear()
        self.down.clear()
        self.unstored.clear()

    def die(self, read: int, stored: int) -> None:
        """The agent's process ends without a word, and the next begins with what the memory has."""
        self.lose(read, stored)
        self.ended |= self.outbox.streams.keys()
        self.outbox = self.ledger.outbox()

    def resume(self, odd: int, _: int) -> None:
        """A new link, now and then to a node with a smaller window."""
        if self.agent is not None:
            return
        self.conn += 1
        window = SMALL if odd == 1 else WINDOW
        self.gateway = GatewayLink(window)
        self.agent = AgentLink(self.outbox)
        hello = Hello(agent="a", boot="b", conn=self.conn, have=self.outbox.have())
        assert self.gateway.receive(hello) is Act.CLAIM
        self.gateway.welcomed()
        have: dict[str, int] = {}
        for command in COMMANDS:
            if self.conn > 1 and command not in self.over:
                have[command] = len(self.stored[command])
                wanted = hello.have.get(command, 0)
                assert wanted >= self.forgotten[command] or command not in hello.have, "asks for what was granted"
                self.gateway.opened(command, have[command], wanted)
        greeting = welcome(have, window)
        self.agent.receive(greeting)
        lost, again = self.agent.resend(greeting)
        assert set(lost) <= self.over, "the store loses nothing here"
        for message in again:
            self.write(message)

    # -- what must hold

    def memory_is_bounded(self) -> None:
        for stream in self.outbox.streams.values():
            assert sum(len(m.payload) for m in stream.pending if isinstance(m, Chunk)) <= WINDOW
            assert stream.input_size == sum(map(len, stream.input)) <= WINDOW
            assert stream.room <= WINDOW
        if self.agent is not None:
            assert len(self.agent.unstored) == self.agent.sent - self.agent.stored

    def the_memory_is_what_the_outbox_holds(self) -> None:
        streams = self.outbox.streams
        assert {c: list(s.pending) for c, s in streams.items()} == self.ledger.pending
        assert all(self.ledger.next[c] == s.next for c, s in streams.items())
        assert self.outbox.events == self.ledger.events
        assert all(self.outbox.known(c) for c in COMMANDS), "none is run again"

    def everything_is_in_order_and_once(self) -> None:
        for command in COMMANDS:
            assert self.stored[command] == self.produced[command][: len(self.stored[command])]
            assert self.taken[command] == self.fed[command][: len(self.taken[command])]
        assert len(set(self.stored_events)) == len(self.stored_events)

    def settle(self) -> None:
        """When faults end, all that was produced is stored, and nothing is held any more."""
        self.resume(0, 0)
        for _ in range(1000):
            if not (self.up or self.unstored or self.down):
                break
            self.gateway_reads(1000)
            self.gateway_stores(1000)
            self.agent_reads(1000)
        assert self.stored == self.produced
        assert sorted(self.stored_events) == sorted(self.events)
        assert self.over == self.ended == set(self.ledger.finished)
        assert set(self.outbox.streams) == set(COMMANDS) - self.ended
        assert not self.outbox.events
        for stream in self.outbox.streams.values():
            assert not stream.pending
            assert stream.room * 2 > self.gateway.window, "credit leaked away"


@pytest.mark.timeout(360)  # 5 s; but hypothesis takes up to 300 s more to shorten a history that fails
@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, min_size=40, max_size=160))
def test_histories(steps: list[tuple[Any, ...]]) -> None:
    history = History()
    for name, *arguments in steps:
        getattr(history, name)(*arguments)
        history.memory_is_bounded()
        history.the_memory_is_what_the_outbox_holds()
        history.everything_is_in_order_and_once()
    history.settle()


# -- one by one ------------------------------------------------------------------------------------


@pytest.fixture
def outbox() -> Outbox:
    made = Outbox()
    made.opened(Cmd(id="A", method="m", credit=WINDOW), WINDOW)
    return made


def test_a_chunk_stands_until_its_receipt(outbox: Outbox) -> None:
    link, stream = linked(outbox), outbox.streams["A"]
    link.written(Ack(id="A"))
    for n in range(3):
        link.written(stream.chunk("stdout", b"x"))
        assert stream.room == WINDOW - n - 1
    link.receive(Rx(s=2))
    assert [m.n for m in stream.pending if isinstance(m, Chunk)] == [1, 2]
    assert list(link.receive(Rx(s=2))) == []
    assert list(link.receive(Rx(s=4))) == ["A"]
    assert not stream.pending


def test_the_end_closes_the_stream_and_its_receipt_forgets_it(outbox: Outbox) -> None:
    link, stream = linked(outbox), outbox.streams["A"]
    link.written(stream.chunk("stdout", b"x"))
    link.written(end := stream.end("ok", b"1"))
    assert (end.total, end.state, end.payload) == (1, "ok", b"1")
    with pytest.raises(ValueError, match="after the end of A"):
        stream.chunk("stdout", b"x")
    with pytest.raises(ValueError, match="A has ended"):
        stream.end("ok")
    link.receive(Rx(s=1))
    assert outbox.streams
    link.receive(Rx(s=2))
    assert not outbox.streams


def test_a_chunk_beyond_the_credit_is_a_defect_of_the_caller(outbox: Outbox) -> None:
    with pytest.raises(ValueError, match="65 bytes exceeds the credit left, 64"):
        outbox.streams["A"].chunk("stdout", bytes(65))


def test_credit_makes_room_and_tells_whose(outbox: Outbox) -> None:
    link = linked(outbox)
    outbox.streams["A"].chunk("stdout", bytes(WINDOW))
    assert list(link.receive(Credit(id="A", bytes=10))) == ["A"]
    assert outbox.streams["A"].room == 10
    assert list(link.receive(Credit(id="unknown", bytes=10))) == []


def test_events_of_qos_0_have_no_number(outbox: Outbox) -> None:
    link = linked(outbox)
    link.written(Event(id="e", type="t", qos=0))
    assert link.sent == 0
    link.written(Event(id="e", type="t", qos=1))
    assert link.sent == 1


@pytest.mark.parametrize("s", [3, 99])
def test_a_receipt_for_what_was_not_sent(outbox: Outbox, s: int) -> None:
    link = linked(outbox)
    for _ in range(2):
        link.written(Ack(id="A"))
    with pytest.raises(ProtocolViolation, match=f"rx {s} out of range") as caught:
        link.receive(Rx(s=s))
    assert caught.value.close_code == 4500


def test_a_receipt_never_goes_back(outbox: Outbox) -> None:
    link = linked(outbox)
    for _ in range(2):
        link.written(Ack(id="A"))
    link.receive(Rx(s=2))
    with pytest.raises(ProtocolViolation, match="rx 1 out of range: 2 stored"):
        link.receive(Rx(s=1))


def test_a_receipt_of_an_older_link_forgets_nothing_new(outbox: Outbox) -> None:
    """The same chunk was written on two links; what the old one says later is nobody's any more."""
    old, stream = linked(outbox), outbox.streams["A"]
    old.written(stream.chunk("stdout", b"0"))
    greeting = welcome({"A": 0})
    new = AgentLink(outbox)
    new.receive(greeting)
    _, again = new.resend(greeting)
    for message in again:
        new.written(message)
    new.receive(Rx(s=1))
    assert not stream.pending
    new.written(stream.chunk("stdout", b"1"))
    old.receive(Rx(s=1))
    assert [m.n for m in stream.pending if isinstance(m, Chunk)] == [1]


@pytest.mark.parametrize(
    ("have", "again", "room"),
    [(0, [0, 1, 2], WINDOW - 30), (1, [1, 2], WINDOW - 20), (2, [2], WINDOW - 10), (3, [], WINDOW)],
)
def test_resending_begins_where_the_store_ends(outbox: Outbox, have: int, again: list[int], room: int) -> None:
    stream = outbox.streams["A"]
    for _ in range(3):
        stream.chunk("stdout", bytes(10))
    lost, resent = linked(outbox).resend(welcome({"A": have}))
    assert lost == []
    assert [m.n for m in resent if isinstance(m, Chunk)] == again
    assert stream.room == room


@pytest.mark.parametrize("have", [0, 1, 9])
@pytest.mark.parametrize("has_ended", [False, True])
def test_what_neither_side_has_ends_the_command(outbox: Outbox, have: int, has_ended: bool) -> None:
    """2 of 3 chunks are receipted; a gateway that then says less, or more than was ever made, has lost its store."""
    link, stream = linked(outbox), outbox.streams["A"]
    for _ in range(3):
        link.written(stream.chunk("stdout", b"x"))
    if has_ended:
        stream.end("ok")
    link.receive(Rx(s=2))
    lost, again = linked(outbox).resend(welcome({"A": have}))
    assert lost == ["A"]
    assert again == [End(id="A", total=have, state="error", error=again[0].error)]  # type: ignore[union-attr]
    assert again[0].error is not None  # type: ignore[union-attr]
    assert again[0].error.code == "results_gap"  # type: ignore[union-attr]
    assert stream.ended


def test_an_end_alone_is_sent_again(outbox: Outbox) -> None:
    link, stream = linked(outbox), outbox.streams["A"]
    link.written(stream.chunk("stdout", b"x"))
    end = stream.end("ok")
    assert linked(outbox).resend(welcome({"A": 1})) == ([], [end])


def test_what_welcome_does_not_name_is_given_up(outbox: Outbox) -> None:
    outbox.opened(Cmd(id="B", method="m"))
    lost, again = linked(outbox).resend(welcome({"B": 0}))
    assert (lost, again) == (["A"], [])
    assert list(outbox.streams) == ["B"]


def test_events_are_sent_again_behind_the_streams(outbox: Outbox) -> None:
    outbox.events["e"] = event = Event(id="e", type="t")
    chunk = outbox.streams["A"].chunk("stdout", b"x")
    assert linked(outbox).resend(welcome({"A": 0})) == ([], [chunk, event])


def test_a_smaller_window_waits_for_what_is_unstored(outbox: Outbox) -> None:
    """Room may be negative then: nothing new is made until the store has caught up."""
    stream = outbox.streams["A"]
    stream.chunk("stdout", bytes(50))
    link = AgentLink(outbox)
    greeting = welcome({"A": 0}, window=20)
    link.receive(greeting)
    link.resend(greeting)
    assert stream.room == -30
    with pytest.raises(ValueError, match="exceeds the credit"):
        stream.chunk("stdout", b"x")


def test_a_second_welcome_breaks_the_protocol(outbox: Outbox) -> None:
    with pytest.raises(ProtocolViolation, match="welcome again"):
        linked(outbox).receive(welcome())


def test_input_waits_for_the_handler_and_is_granted_when_taken(outbox: Outbox) -> None:
    link, stream = linked(outbox), outbox.streams["A"]
    for n in range(4):
        assert list(link.receive(Chunk(id="A", n=n, kind="stdin", payload=bytes([n]) * 10))) == ["A"]
    assert stream.input_size == 40
    granted = [stream.take() for _ in range(4)]
    assert [data for data, _ in granted] == [bytes([n]) * 10 for n in range(4)]
    assert [credit for _, credit in granted] == [None, None, None, Credit(id="A", bytes=40)]
    assert stream.settle() is None


def test_what_is_owed_is_granted_before_the_handler_waits(outbox: Outbox) -> None:
    link, stream = linked(outbox), outbox.streams["A"]
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=b"xyz"))
    assert stream.take() == (b"xyz", None)
    assert stream.settle() == Credit(id="A", bytes=3)
    assert stream.settle() is None


@pytest.mark.parametrize(
    "message", [Chunk(id="A", n=2, kind="stdin"), Chunk(id="A", n=0, kind="stdin"), End(id="A", total=2)]
)
def test_input_out_of_order(outbox: Outbox, message: Chunk | End) -> None:
    link = linked(outbox)
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=b"x"))
    with pytest.raises(ProtocolViolation, match="out of order: expected 1") as caught:
        link.receive(message)
    assert caught.value.close_code == 4500


def test_input_beyond_the_window(outbox: Outbox) -> None:
    link = linked(outbox)
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=bytes(WINDOW)))
    with pytest.raises(ProtocolViolation, match="exceeds the window of 64 bytes"):
        link.receive(Chunk(id="A", n=1, kind="stdin", payload=b"x"))


def test_input_after_its_end(outbox: Outbox) -> None:
    link = linked(outbox)
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=b"x"))
    link.receive(End(id="A", total=1))
    assert outbox.streams["A"].input_ended
    with pytest.raises(ProtocolViolation, match="out of order"):
        link.receive(Chunk(id="A", n=1, kind="stdin", payload=b"x"))


def test_input_for_nobody_is_ignored_unread(outbox: Outbox) -> None:
    link = linked(outbox)
    outbox.streams["A"].end("ok")
    for id in ("A", "unknown"):
        assert list(link.receive(Chunk(id=id, n=7, kind="stdin", payload=bytes(1000)))) == []
        assert list(link.receive(End(id=id, total=99))) == []
    assert not outbox.streams["A"].input


def test_hello_asks_for_the_input_that_was_not_taken(outbox: Outbox) -> None:
    outbox.opened(Cmd(id="B", method="m")).end("ok")
    link, stream = linked(outbox), outbox.streams["A"]
    for n in range(3):
        link.receive(Chunk(id="A", n=n, kind="stdin", payload=b"x"))
    link.receive(End(id="A", total=3))
    stream.take()
    assert outbox.have() == {"A": 1}, "B has ended and takes no more input"
    assert outbox.have() == {"A": 1}
    assert not stream.input
    assert not stream.input_ended
    again = linked(outbox, {"A": 0, "B": 0})
    again.receive(Chunk(id="A", n=1, kind="stdin", payload=b"x"))
    again.receive(End(id="A", total=2))
    assert stream.input_ended


def test_ids_are_remembered_for_a_while(outbox: Outbox) -> None:
    assert outbox.known("A")
    assert not outbox.known("c0")
    for n in range(FINISHED):
        outbox.finished(f"c{n}")
    assert all(outbox.known(f"c{n}") for n in range(FINISHED))
    outbox.finished("one more")
    assert not outbox.known("c0")
    assert outbox.known("c1")
    assert outbox.known("A"), "one that runs is never forgotten"


# -- with a memory ---------------------------------------------------------------------------------


def test_a_chunk_that_cannot_be_kept_was_never_made() -> None:
    ledger = Ledger()
    outbox = Outbox(ledger)
    ledger.accept("A")
    stream = outbox.opened(Cmd(id="A", method="m", credit=WINDOW), WINDOW)
    first = stream.chunk("stdout", b"x" * 10)
    ledger.full = True
    with pytest.raises(Unavailable):
        stream.chunk("stdout", b"y" * 10)
    assert (stream.next, stream.room, list(stream.pending)) == (1, WINDOW - 10, [first])
    end = stream.end("error")
    assert end.total == 1
    assert ledger.pending == {"A": [first, end]}


def test_the_memory_hears_of_input_and_of_lost_results() -> None:
    ledger = Ledger()
    outbox = Outbox(ledger)
    ledger.accept("A")
    stream = outbox.opened(Cmd(id="A", method="m", credit=WINDOW), WINDOW)
    stream.chunk("stdout", b"x")
    link = linked(outbox)
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=b"in"))
    assert not ledger.read
    stream.take()
    assert ledger.read == {"A"}
    lost, again = linked(outbox).resend(welcome({"A": 5}))
    assert lost == ["A"]
    assert ledger.pending == {"A": again}
    assert ledger.next == {"A": 5}
