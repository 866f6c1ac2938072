"""What doorbells tell of new results: it continues what the reader has, or the reader reads the store."""

from __future__ import annotations

from fairlead.fleet.command_record import AppendResult, StoredEnd
from fairlead.fleet.commands import accepted, data, ending
from fairlead.fleet.schema import TargetState
from fairlead.routing.commands.result_doorbells import MOST_BYTES, pack_added, page_of


def told(first: int, *payloads: bytes, state: str = "running", seq: int | None = None) -> bytes:
    steps = [*accepted()]
    for n, payload in enumerate(payloads, first):
        steps += data(n, "stdout", payload)
    if state == "ok":
        steps += ending(first + len(payloads), TargetState.OK, StoredEnd(b"1"))
    after = first + len(payloads)
    return pack_added(
        "agent", steps, AppendResult("ok", state, (), 0, after, len(payloads), after if seq is None else seq)
    )


def test_results_that_continue_what_the_reader_has_are_a_page() -> None:
    page = page_of("c", 1, [told(1, b"a", b"b"), told(3, b"c", state="ok")])
    assert page is not None
    assert [(result.offset, result.n, result.payload) for result in page.results] == [
        (1, 1, b"a"),
        (2, 2, b"b"),
        (3, 3, b"c"),
    ]
    assert page.ended is not None
    (target,) = page.ended.targets
    assert (target.agent, target.state, target.next, target.ending) == ("agent", TargetState.OK, 4, StoredEnd(b"1"))


def test_what_the_reader_has_is_left_out() -> None:
    page = page_of("c", 2, [told(0, b"a"), told(1, b"b", b"c")])
    assert page is not None
    assert [result.offset for result in page.results] == [2]
    ended = page_of("c", 2, [told(1, b"b", state="ok")])
    assert ended is not None
    assert (ended.results, ended.ended is not None) == ([], True)


def test_after_a_gap_the_store_is_read() -> None:
    assert page_of("c", 0, [told(1, b"b")]) is None
    assert page_of("c", 0, [told(0, b"a"), told(2, b"c", state="ok")]) is None
    assert page_of("c", 3, [told(0, b"a", state="ok")]) is None
    assert page_of("c", 1, [told(0, b"a")]) is None
    assert page_of("c", 0, [b"of another version"]) is None


def test_what_was_dropped_repeated_or_is_large_is_not_told() -> None:
    assert told(0, b"a", seq=-1) == b""
    assert told(0, b"x" * MOST_BYTES) != b""
    assert told(0, b"x" * (MOST_BYTES + 1)) == b""
    steps = data(0, "stdout", b"repeated")
    assert pack_added("agent", steps, AppendResult("ok", "running", (), 0, 1, 0, 1)) == b""
