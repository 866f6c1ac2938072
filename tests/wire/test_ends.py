"""Ends that must not wait for credit, and ends too large for a message: what a stream of the agent and its journal
do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.agent.journal.records import Accepted, Header
from fairlead.agent.journal.state import JournalState
from fairlead.wire.codec import agent_codec, gateway_codec
from fairlead.wire.command_stream import CommandStream
from fairlead.wire.messages import (
    MESSAGE_LIMIT,
    MESSAGE_REST,
    SUBPROTOCOLS,
    Chunk,
    Cmd,
    End,
    Error,
    payload_limit,
)


def stream_with(sizes: list[int], have: int, window: int) -> tuple[CommandStream, list[Chunk | End]]:
    """A stream that made chunks of `sizes`, taken up on a link of a smaller window; and what it may send there."""
    stream = CommandStream("c", 1 << 20, 1 << 20)
    for size in sizes:
        stream.chunk("stdout", b"x" * size)
    assert stream.resume(min(have, len(sizes)), window, 0)
    return stream, stream.granted(window)


@given(st.lists(st.integers(1, 100), max_size=12), st.integers(0, 12), st.integers(1, 400), st.booleans())
def test_after_a_cut_the_end_follows_what_was_sent(sizes: list[int], have: int, window: int, late: bool) -> None:
    """`late`: it had ended already, and its end waits behind output without credit."""
    stream, sent = stream_with(sizes, have, window)
    have = min(have, len(sizes))
    if late:
        made = stream.end("ok", b"1")
        sent += [] if stream.held else [made]
    sent += stream.cut()
    if not late:
        sent.append(stream.end("cancelled"))
    *chunks, end = sent
    assert isinstance(end, End)
    assert [chunk.n for chunk in chunks if isinstance(chunk, Chunk)] == list(range(have, have + len(chunks)))
    assert end.total == have + len(chunks)
    assert sum(sizes[have : end.total]) <= window
    assert list(stream.pending) == sent
    assert not stream.held
    assert stream.cut() == []


def test_the_journal_forgets_cut_chunks_and_keeps_sent_ones() -> None:
    state = JournalState()
    state.apply(Header(1, "j", "a"), 10)
    state.apply(Accepted(Cmd(id="c", method="m"), 0), 10)
    before = state.live
    for n in range(4):
        state.apply(Chunk(id="c", n=n, kind="stdout", payload=b"x"), 100)
    state.stored("c", 1)
    state.apply(End(id="c", total=3, state="cancelled"), 10)
    assert [chunk.n for chunk, _ in state.commands["c"].chunks] == [1, 2]
    assert state.live == before + 2 * 100 + 10
    # Results that the gateway has lost are another matter: nothing that is held may be sent.
    state.apply(End(id="c", total=0, state="error", error=Error(code="results_gap")), 10)
    assert not state.commands["c"].chunks


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
@pytest.mark.parametrize("limit", [128 << 10, MESSAGE_LIMIT])
def test_the_largest_payload_fits_a_message(subprotocol: str, limit: int) -> None:
    """With the longest id and a page of an error beside it; a payload beyond it need not."""
    most = payload_limit(subprotocol, limit)
    error = Error(code="x" * 64, message="\x01" * 1024, details={f"{i}": "x" * 256 for i in range(16)})
    end = End(id="x" * 64, total=(1 << 53) - 1, state="error", payload=b"\xff" * most, error=error)
    data = agent_codec(subprotocol).encode(end)
    assert len(data) <= limit
    assert gateway_codec(subprotocol, limit).decode(data) == end
    assert payload_limit(SUBPROTOCOLS[0], limit) == limit - MESSAGE_REST


def test_an_end_too_large_for_the_next_link_is_replaced() -> None:
    stream, _ = stream_with([10, 10], 0, 1 << 20)
    stream.end("ok", b"x" * 500_000)
    assert stream.result_size == 500_000
    stream.replace_end(Error(code="result_too_large"))
    assert stream.result_size == 0
    assert stream.resume(1, 1 << 20, 0)
    *chunks, end = stream.granted(1 << 20)
    assert [chunk.n for chunk in chunks if isinstance(chunk, Chunk)] == [1]
    assert isinstance(end, End)
    assert (end.total, end.state, end.error) == (2, "error", Error(code="result_too_large"))
