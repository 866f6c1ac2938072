"""The totals always equal the sums over all sessions, whatever happens to the sessions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.hub.pending_messages import PENDING_BYTES, pending_size
from fairlead.hub.session import RETRY_MS
from fairlead.hub.totals import Totals
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Bye, Chunk, End, Error, Event, FromAgent

from support.hub.linked_session import AGENT, feed_message, linked


def event(size: int) -> Event:
    return Event(id="e", type="t", payload=bytes(size))


commands = st.sampled_from(["c0", "c1", "c2"])
steps = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["begin", "end", "dismiss", "chunk", "event", "stored", "close", "lost", "forgo"]),
        commands,
        st.integers(0, 60_000),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(steps, st.integers(1000, 400_000))
def test_totals_are_the_sums_over_all_sessions(history: list[tuple[int, str, str, int]], limit: int) -> None:
    totals = Totals(limit)
    links = [linked(totals, f"agent-{i}") for i in range(4)]
    for which, what, command, size in history:
        session, wire = links[which]
        stream = session.stream(command)
        match what:
            case "begin":
                if session.ready:
                    session.open_stream(command)
            case "end":
                session.close_stream(command)
            case "dismiss":
                session.dismiss_stream(command)
            case "chunk":
                n = stream.next if stream else 0
                feed_message(session, wire, Chunk(id=command, n=n, kind="stdout", payload=bytes(size)))
            case "event":
                feed_message(session, wire, event(size))
            case "stored":
                session.confirm_stored(sum(map(pending_size, session.take_pending())))
            case "close":
                session.close(CloseCode.RESTART, "told to")
            case "lost":
                session.on_close(wire, 1006, "")
            case "forgo":
                if not session.open:
                    session.discard_pending()
        walk = [one for one, _ in links]
        assert totals.streams == sum(len(one.streams or ()) for one in walk)
        assert totals.pending == sum(one.pending_bytes for one in walk)
        for one, its in links:
            assert one.pending_bytes == sum(map(pending_size, one.pending or ()))
            assert one.connection is None or its.reading is not one.paused
            assert one.pending_bytes or not one.paused or not one.open, "nobody would ever read it on"
    for session, wire in links:
        session.on_close(wire, 1006, "")
        session.discard_pending()
        assert not session.context.paused
    assert (totals.streams, totals.pending) == (0, 0)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 20), st.integers(1_000_000, 2_000_000))
def test_sessions_that_fill_the_limit_settle_at_equal_parts_and_recover(count: int, limit: int) -> None:
    totals = Totals(limit)
    links = [linked(totals, f"agent-{i}") for i in range(count)]
    for _ in range(1_000):
        for session, wire in links:
            if wire.reading:
                feed_message(session, wire, event(1_000))
    assert not any(wire.reading for _, wire in links)
    message = pending_size(event(1_000))
    assert totals.pending <= limit + count * message, "each may exceed its part by its last message"
    held = [session.pending_bytes for session, _ in links]
    assert max(held) - min(held) <= message
    fair = min(limit / (count + 1), PENDING_BYTES)
    assert fair - message <= max(held) <= fair + 2 * message
    late, wire = linked(totals, "late")
    feed_message(late, wire, event(100))
    assert wire.reading or fair <= count * message, "who has little is always read"
    for session, wire in links:
        session.confirm_stored(sum(map(pending_size, session.take_pending())))
        assert wire.reading


def test_excess_closes_the_link_with_a_retry_pause() -> None:
    session, wire = linked(Totals())
    session.on_excess(wire, "more than 500 messages a second for 30 s")
    bye = AGENT.decode(wire.sent[-1])
    assert isinstance(bye, Bye)
    assert (bye.code, wire.closed) == (CloseCode.RATE, [CloseCode.RATE])
    assert bye.retry is not None
    assert RETRY_MS[0] <= bye.retry <= RETRY_MS[1]


def test_messages_are_charged_to_the_read_budget() -> None:
    session, wire = linked(Totals())
    feed_message(session, wire, event(10))
    assert wire.charged == [0, 1]
    feed_message(session, wire, Chunk(id="nobody", n=0, kind="stdout", payload=bytes(60_000)))
    assert wire.charged == [1, 1]
    session.on_message(wire, b"\x82\xa1t\x64\xa1x\xc5\x80\x00" + bytes(1 << 15))  # a type that is not known
    assert wire.charged == [9, 1]
    session.open_stream("c")
    feed_message(session, wire, Chunk(id="c", n=0, kind="stdout", payload=bytes(60_000)))
    assert wire.charged == [9, 1]
    assert session.asked == 3


LARGE = Error(code="broken", message="m" * 500, details={"where": "w" * 900_000, "line": 17})


@pytest.mark.parametrize("message", [Ack(id="c", state="refused", error=LARGE), End(id="c", total=0, error=LARGE)])
def test_an_error_counts_as_pending_with_its_details(message: FromAgent) -> None:
    """Nothing but the limit of a message bounds them, and up to 1,000 commands of an agent may end at once."""
    assert 900_500 < pending_size(message) < 902_000
