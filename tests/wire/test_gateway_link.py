"""The gateway's end of a link: phases, numbers, order, credit in both directions, and what closes with which code."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ProtocolViolation
from fairlead.wire.gateway_link import Action, GatewayLink, LinkPhase
from fairlead.wire.messages import (
    CHUNK_LIMIT,
    WINDOW,
    Ack,
    Auth,
    Bye,
    Chunk,
    Credit,
    End,
    Event,
    Facts,
    FromAgent,
    Hb,
    Hello,
    Rx,
)

from support.wire.windowed_link import WindowedLink

HELLO = Hello(agent="a", boot="b", conn=1)
ALL: list[FromAgent | None] = [
    HELLO, Hb(ts=1), Ack(id="A"), Chunk(id="A", n=0, kind="stdout"), End(id="A", total=0), Credit(id="A", bytes=1),
    Event(id="e", type="t"), Event(id="e", type="t", qos=0), Auth(), Bye(code=1000), None, Facts({"os": None}),
]  # fmt: skip
NAMES = ["hello", "hb", "ack", "chunk", "end", "credit", "event", "event-0", "auth", "bye", "ignored", "facts"]


def link_in(phase: LinkPhase, window: int = WINDOW) -> GatewayLink:
    link = WindowedLink(window)
    if phase >= LinkPhase.CLAIMING:
        link.receive(HELLO)
    if phase >= LinkPhase.READY:
        link.welcomed()
        link.opened("A")
    if phase >= LinkPhase.CLOSED:
        link.closed()
    return link


@pytest.fixture
def link() -> GatewayLink:
    """Welcomed, with an open command A and a window of 100 bytes."""
    return link_in(LinkPhase.READY, 100)


def chunk(n: int, size: int = 1, id: str = "A") -> Chunk:
    return Chunk(id=id, n=n, kind="stdout", payload=bytes(size))


# -- phases ----------------------------------------------------------------------------------------

BREAK = None
CLAIM, ANSWER, STORE, GRANT, LEAVE, IGNORE = (
    Action.CLAIM, Action.ANSWER, Action.STORE, Action.GRANT, Action.LEAVE, Action.IGNORE,
)  # fmt: skip
TABLE: dict[LinkPhase, list[Action | None]] = {
    # hello, hb, ack, chunk, end, credit, event, event of qos 0, auth, bye, ignored, facts
    LinkPhase.GREETING: [CLAIM, BREAK, BREAK, BREAK, BREAK, BREAK, BREAK, BREAK, BREAK, LEAVE, IGNORE, BREAK],
    LinkPhase.CLAIMING: [BREAK, ANSWER, BREAK, BREAK, BREAK, BREAK, BREAK, BREAK, BREAK, LEAVE, IGNORE, BREAK],
    LinkPhase.READY: [
        BREAK, ANSWER, STORE, Action.STORE_UNASKED, STORE, GRANT, STORE, STORE, IGNORE, LEAVE,
        IGNORE, Action.CHANGE,
    ],
    LinkPhase.CLOSED: [Action.IGNORE] * len(ALL),
}  # fmt: skip


@pytest.mark.parametrize("phase", list(LinkPhase), ids=lambda phase: phase.name.lower())
@pytest.mark.parametrize("index", range(len(ALL)), ids=NAMES)
def test_every_message_is_handled_or_refused_in_every_phase(phase: LinkPhase, index: int) -> None:
    link, message, act = link_in(phase), ALL[index], TABLE[phase][index]
    if act is None:
        with pytest.raises(ProtocolViolation) as caught:
            link.receive(message)
        assert caught.value.close_code == 4500
    else:
        assert link.receive(message) is act


def test_welcome_needs_a_hello() -> None:
    for phase in (LinkPhase.GREETING, LinkPhase.READY, LinkPhase.CLOSED):
        with pytest.raises(ValueError, match=phase.name):
            link_in(phase).welcomed()


def test_phases_only_advance() -> None:
    link = GatewayLink()
    seen = [link.phase]
    link.receive(HELLO)
    seen.append(link.phase)
    link.welcomed()
    seen.append(link.phase)
    link.closed()
    seen.append(link.phase)
    assert seen == list(LinkPhase)


# -- numbers and receipts --------------------------------------------------------------------------


def test_acks_chunks_ends_and_events_are_numbered(link: GatewayLink) -> None:
    numbered: list[FromAgent] = [Ack(id="A"), chunk(0), End(id="A", total=1), Event(id="e", type="t", qos=1)]
    for n, message in enumerate(numbered, start=1):
        link.receive(message)
        assert link.received == n
    others: list[FromAgent | None] = [
        Hb(),
        Credit(id="A", bytes=1),
        Event(id="e", type="t", qos=0),
        Auth(),
        None,
        Facts({}),
    ]
    for other in others:
        link.receive(other)
        assert link.received == 4


def test_receipts_are_cumulative(link: GatewayLink) -> None:
    for n in range(5):
        link.receive(chunk(n))
    assert link.store(2) == Rx(s=2)
    assert link.store(3) == Rx(s=5)
    with pytest.raises(ValueError, match="6 messages stored: expected at most 5"):
        link.store(1)


def test_messages_of_no_open_stream_are_counted_and_skipped(link: GatewayLink) -> None:
    link.ended("A")
    strangers: list[FromAgent] = [Ack(id="A"), chunk(99, 60_000), End(id="A", total=7), Ack(id="X"), chunk(3, id="X")]
    assert [link.receive(message) for message in strangers] == [Action.SKIP] * 5
    assert link.store(5) == Rx(s=5)
    assert link.receive(Credit(id="A", bytes=1)) is Action.IGNORE
    assert link.repay("A", 1000) is None


def test_what_no_credit_bounds_counts_as_a_message(link: GatewayLink) -> None:
    """Otherwise an agent with one open command could send as much of it as it liked."""
    acks = [Ack(id="A"), Ack(id="A"), Ack(id="A", state="duplicate")]
    assert [link.receive(ack) for ack in acks] == [Action.STORE, Action.STORE_UNASKED, Action.STORE_UNASKED]
    sizes = (0, 1, 0)
    stored = [link.receive(chunk(n, size)) for n, size in enumerate(sizes)]
    assert stored == [Action.STORE_UNASKED, Action.STORE, Action.STORE_UNASKED]
    assert link.received == len(acks) + len(sizes), "they are numbered like the others"


def test_an_event_needs_no_stream(link: GatewayLink) -> None:
    link.ended("A")
    assert link.receive(Event(id="e", type="t")) is Action.STORE


@pytest.mark.parametrize("qos", [0, 1])
def test_no_agent_sends_an_event_of_the_gateway(link: GatewayLink, qos: Literal[0, 1]) -> None:
    """Its readers take `fairlead.events.dropped` for the gateway's word."""
    with pytest.raises(ProtocolViolation, match="does not begin with fairlead") as caught:
        link.receive(Event(id="e", type="fairlead.events.dropped", qos=qos))
    assert caught.value.close_code == 4500
    assert link.receive(Event(id="e", type="fairleads", qos=qos)) is Action.STORE


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 2, 3])
def test_a_chunk_out_of_order_is_a_violation(link: GatewayLink, n: int) -> None:
    link.receive(chunk(0))
    with pytest.raises(ProtocolViolation, match=f"chunk {n} of A out of order: expected 1") as caught:
        link.receive(chunk(n))
    assert caught.value.close_code == 4500


@pytest.mark.parametrize("total", [0, 1, 3])
def test_an_end_with_a_wrong_count_is_a_violation(link: GatewayLink, total: int) -> None:
    link.receive(chunk(0))
    link.receive(chunk(1))
    with pytest.raises(ProtocolViolation, match=f"counts {total} chunks: expected 2"):
        link.receive(End(id="A", total=total))


def test_a_resumed_stream_begins_after_what_is_stored(link: GatewayLink) -> None:
    stream = link.opened("B", 7, 3)
    assert (stream.next, stream.input_next, stream.input_consumed) == (7, 3, 3)
    with pytest.raises(ProtocolViolation, match="expected 7"):
        link.receive(chunk(0, id="B"))
    link = link_in(LinkPhase.READY)
    link.opened("B", 7)
    assert link.receive(chunk(7, id="B")) is Action.STORE
    assert link.receive(End(id="B", total=8)) is Action.STORE


# -- output credit ---------------------------------------------------------------------------------


def test_output_beyond_the_credit_is_a_violation(link: GatewayLink) -> None:
    link.receive(chunk(0, 60))
    link.receive(chunk(1, 40))
    assert link.receive(chunk(2, 0)) is Action.STORE_UNASKED, "empty chunks cost no credit"
    with pytest.raises(ProtocolViolation, match="exceeds the credit left, 0") as caught:
        link.receive(chunk(3, 1))
    assert caught.value.close_code == 4500


def test_a_chunk_above_the_limit_has_a_code_of_its_own() -> None:
    link = link_in(LinkPhase.READY)
    assert link.receive(chunk(0, CHUNK_LIMIT)) is Action.STORE
    for id in ("A", "unknown"):
        with pytest.raises(ProtocolViolation, match="exceeds max 65536") as caught:
            link.receive(chunk(1, CHUNK_LIMIT + 1, id))
        assert caught.value.close_code == 4506


def test_half_a_window_is_granted_at_once(link: GatewayLink) -> None:
    for n in range(3):
        link.receive(chunk(n, 20))
    assert link.repay("A", 20) is None
    assert link.repay("A", 20) is None
    assert link.repay("A", 20) == Credit(id="A", bytes=60)
    assert link.repay("A", 10) is None
    link.receive(chunk(3, 100))
    with pytest.raises(ProtocolViolation, match="exceeds the credit"):
        link.receive(chunk(4, 1))


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=200))
def test_credit_is_neither_created_nor_lost(steps: list[tuple[int, bool]]) -> None:
    """An agent that keeps within its credit is never closed and never waits for ever."""
    link = link_in(LinkPhase.READY, 100)
    credit_left, n, unstored = 100, 0, []
    for size, store in steps:
        if size <= credit_left:
            assert link.receive(chunk(n, size)) is (Action.STORE if size else Action.STORE_UNASKED)
            n, credit_left = n + 1, credit_left - size
            unstored.append(size)
        if store and unstored:
            link.store(1)
            credit = link.repay("A", unstored.pop(0))
            credit_left += credit.bytes if credit else 0
        stream = link.stream("A")
        assert stream is not None
        assert stream.credit_left == credit_left
        assert stream.credit_left + stream.owed + sum(unstored) == 100
        assert stream.owed * 2 < 100
        if not unstored:
            assert credit_left > 50, "half a window is free when all is stored"


# -- input credit ----------------------------------------------------------------------------------


def test_input_is_sent_within_the_granted_credit(link: GatewayLink) -> None:
    stream = link.opened("B")
    for size in (10, 20, 30):
        stream.fed(size)
    assert (stream.input_next, stream.input_credit, stream.input_consumed) == (3, 40, 0)
    consumed = []
    for size in (5, 5, 19, 1, 30):
        assert link.receive(Credit(id="B", bytes=size)) is Action.GRANT
        consumed.append(stream.input_consumed)
    assert consumed == [0, 1, 1, 2, 3]
    assert stream.input_credit == 100


def test_an_empty_input_chunk_is_consumed_with_the_next_one(link: GatewayLink) -> None:
    """No credit covers it: if it were dropped any sooner, it could be asked for and never be sent again."""
    stream = link.opened("B")
    for size in (10, 0, 0, 5):
        stream.fed(size)
    consumed = []
    for size in (10, 4, 1):
        link.receive(Credit(id="B", bytes=size))
        consumed.append(stream.input_consumed)
    assert consumed == [1, 3, 4]


def test_absurd_input_credit_is_a_violation(link: GatewayLink) -> None:
    link.receive(Credit(id="A", bytes=(1 << 30) - 100))
    with pytest.raises(ProtocolViolation, match="credit of A exceeds max") as caught:
        link.receive(Credit(id="A", bytes=1))
    assert caught.value.close_code == 4500


@given(st.lists(st.integers(0, 40), max_size=40), st.lists(st.integers(1, 30), max_size=80), st.integers(0, 9))
def test_consumed_input_never_exceeds_the_credit(sizes: list[int], grants: list[int], first: int) -> None:
    """What is consumed is dropped from the store: one chunk too many could never be sent again."""
    link = link_in(LinkPhase.READY, 4000)
    stream = link.opened("B", 0, first)
    for size in sizes:
        stream.fed(size)
    granted = 0
    for grant in grants:
        size = min(grant, sum(sizes) - granted)
        if size == 0:
            break
        granted += size
        link.receive(Credit(id="B", bytes=size))
        whole = stream.input_consumed - first
        assert sum(sizes[:whole]) <= granted
        assert whole == len(sizes) or sizes[whole] == 0 or sum(sizes[: whole + 1]) > granted
        assert stream.input_credit == 4000 - sum(sizes) + granted
    assert stream.input_next == first + len(sizes)


# -- streams ---------------------------------------------------------------------------------------


def test_an_idle_link_has_no_containers(link: GatewayLink) -> None:
    link.opened("B")
    link.ended("A")
    assert link.streams is not None
    link.ended("B")
    link.ended("B")
    assert link.streams is None
    assert link.stream("B") is None
    assert link_in(LinkPhase.CLOSED).streams is None


@given(st.lists(st.sampled_from(range(len(ALL))), max_size=60))
def test_any_input_raises_only_violations(indices: list[int]) -> None:
    link = GatewayLink()
    for index in indices:
        try:
            act = link.receive(ALL[index])
        except ProtocolViolation:
            link.closed()
            continue
        if act is Action.CLAIM:
            link.welcomed()
            link.opened("A")
        assert link.stored <= link.received
