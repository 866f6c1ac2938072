"""The agent's end of a link, one rule at a time: what is kept until its receipt, what is sent again, what ends."""

from __future__ import annotations

import pytest

from fairlead.errors import ProtocolViolation, Unavailable
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.messages import Ack, Chunk, Cmd, Credit, End, Event, Rx
from fairlead.wire.outbox import FINISHED, Outbox

from support.wire.agent_memory import WINDOW, RecordedMemory, linked, welcome


def test_a_chunk_is_kept_until_its_receipt(outbox: Outbox) -> None:
    link, stream = linked(outbox), outbox.streams["A"]
    link.written(Ack(id="A"))
    for n in range(3):
        link.written(stream.chunk("stdout", b"x"))
        assert stream.credit_left == WINDOW - n - 1
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


def test_a_chunk_beyond_the_credit_is_a_value_error(outbox: Outbox) -> None:
    with pytest.raises(ValueError, match="65 bytes exceeds the credit left, 64"):
        outbox.streams["A"].chunk("stdout", bytes(65))


def test_credit_is_added_to_its_stream(outbox: Outbox) -> None:
    link = linked(outbox)
    outbox.streams["A"].chunk("stdout", bytes(WINDOW))
    assert list(link.receive(Credit(id="A", bytes=10))) == ["A"]
    assert outbox.streams["A"].credit_left == 10
    assert list(link.receive(Credit(id="unknown", bytes=10))) == []


def test_events_of_qos_0_have_no_number(outbox: Outbox) -> None:
    link = linked(outbox)
    link.written(Event(id="e", type="t", qos=0))
    assert link.sent == 0
    link.written(Event(id="e", type="t", qos=1))
    assert link.sent == 1


@pytest.mark.parametrize("s", [3, 99])
def test_a_receipt_for_a_chunk_that_was_not_sent_is_a_violation(outbox: Outbox, s: int) -> None:
    link = linked(outbox)
    for _ in range(2):
        link.written(Ack(id="A"))
    with pytest.raises(ProtocolViolation, match=f"rx {s} out of range") as caught:
        link.receive(Rx(s=s))
    assert caught.value.close_code == 4500


def test_a_receipt_that_goes_back_is_a_violation(outbox: Outbox) -> None:
    link = linked(outbox)
    for _ in range(2):
        link.written(Ack(id="A"))
    link.receive(Rx(s=2))
    with pytest.raises(ProtocolViolation, match="rx 1 out of range: expected 2 to"):
        link.receive(Rx(s=1))


def test_a_receipt_of_an_older_link_forgets_nothing_new(outbox: Outbox) -> None:
    """The same chunk was written on two links; a late receipt of the old link is ignored."""
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
    ("have", "again", "credit_left"),
    [(0, [0, 1, 2], WINDOW - 30), (1, [1, 2], WINDOW - 20), (2, [2], WINDOW - 10), (3, [], WINDOW)],
)
def test_resending_begins_after_what_is_stored(outbox: Outbox, have: int, again: list[int], credit_left: int) -> None:
    stream = outbox.streams["A"]
    for _ in range(3):
        stream.chunk("stdout", bytes(10))
    lost, resent = linked(outbox).resend(welcome({"A": have}))
    assert lost == []
    assert [m.n for m in resent if isinstance(m, Chunk)] == again
    assert stream.credit_left == credit_left


@pytest.mark.parametrize("have", [0, 1, 9])
@pytest.mark.parametrize("has_ended", [False, True])
def test_chunks_that_neither_side_has_end_the_command(outbox: Outbox, have: int, has_ended: bool) -> None:
    """2 of 3 chunks have receipts; a gateway that then reports fewer, or more than were ever created, has lost its
    store."""
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


def test_a_stream_that_welcome_does_not_name_is_given_up(outbox: Outbox) -> None:
    outbox.opened(Cmd(id="B", method="m"))
    lost, again = linked(outbox).resend(welcome({"B": 0}))
    assert (lost, again) == (["A"], [])
    assert list(outbox.streams) == ["B"]


def test_events_are_sent_again_after_the_streams(outbox: Outbox) -> None:
    outbox.events["e"] = event = Event(id="e", type="t")
    chunk = outbox.streams["A"].chunk("stdout", b"x")
    assert linked(outbox).resend(welcome({"A": 0})) == ([], [chunk, event])


def test_a_smaller_window_waits_for_unstored_chunks(outbox: Outbox) -> None:
    """The credit may be negative then: no chunk is created until the store has caught up."""
    stream = outbox.streams["A"]
    stream.chunk("stdout", bytes(50))
    link = AgentLink(outbox)
    greeting = welcome({"A": 0}, window=20)
    link.receive(greeting)
    link.resend(greeting)
    assert stream.credit_left == -30
    with pytest.raises(ValueError, match="exceeds the credit"):
        stream.chunk("stdout", b"x")


def test_a_second_welcome_is_a_violation(outbox: Outbox) -> None:
    with pytest.raises(ProtocolViolation, match="second welcome"):
        linked(outbox).receive(welcome())


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


def test_a_chunk_that_the_memory_refuses_is_not_created() -> None:
    ledger = RecordedMemory()
    outbox = Outbox(ledger)
    ledger.accept("A")
    stream = outbox.opened(Cmd(id="A", method="m", credit=WINDOW), WINDOW)
    first = stream.chunk("stdout", b"x" * 10)
    ledger.full = True
    with pytest.raises(Unavailable):
        stream.chunk("stdout", b"y" * 10)
    assert (stream.next, stream.credit_left, list(stream.pending)) == (1, WINDOW - 10, [first])
    end = stream.end("error")
    assert end.total == 1
    assert ledger.pending == {"A": [first, end]}


def test_the_memory_records_input_and_lost_results() -> None:
    ledger = RecordedMemory()
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
