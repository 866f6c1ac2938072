from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.bus.doorbell import (
    MAX_PER_ENTRY,
    Canary,
    CancelRequested,
    CommandOffered,
    CommandQueued,
    Doorbell,
    InputAdded,
    LinkStatsRequested,
    LinkStatsWritten,
    LinkSuperseded,
    MembershipChanged,
    ResultsAdded,
    ResultsConsumed,
    ResultsStored,
    decode,
    encode,
    in_entries,
)

ids = st.text(max_size=64)
words = st.text(min_size=1, max_size=64)
times = st.integers(0, 2**53 - 1)
doorbells: st.SearchStrategy[Doorbell] = st.one_of(
    st.builds(CommandQueued, ids, ids),
    st.builds(
        CommandOffered,
        ids,
        words,
        times,
        times,
        times,
        words,
        st.binary(),
        st.sampled_from(("bulk", "interactive")),
        st.sampled_from(("never", "safe")),
        times,
        times,
        ids,
        times,
        st.binary(max_size=256),
        ids,
    ),
    st.builds(ResultsAdded, ids),
    st.builds(ResultsStored, ids, st.binary()),
    st.builds(LinkSuperseded, ids, st.integers(0, 2**63 - 1), st.integers(1000, 4999)),
    st.builds(CancelRequested, ids, ids),
    st.builds(InputAdded, ids, ids),
    st.builds(Canary, ids),
    st.builds(MembershipChanged),
    st.builds(LinkStatsRequested, ids, ids),
    st.builds(LinkStatsWritten, ids),
    st.builds(ResultsConsumed, ids, ids),
)


@given(st.lists(doorbells, max_size=50))
def test_doorbells_are_decoded_as_they_were_encoded(rung: list[Doorbell]) -> None:
    assert decode(encode(rung)) == rung


@given(st.binary(max_size=200))
def test_foreign_bytes_are_ignored(payload: bytes) -> None:
    assert isinstance(decode(payload), list)


@given(st.lists(doorbells, max_size=20), st.integers(0, 20), st.integers(11, 1000))
def test_kinds_of_a_newer_version_are_skipped(rung: list[Doorbell], place: int, kind: int) -> None:
    raw = msgspec.msgpack.decode(encode(rung))
    raw.insert(place, [kind, "whatever", {"this": "means"}])
    assert decode(msgspec.msgpack.encode(raw)) == rung


def test_fields_that_a_newer_version_appends_are_skipped() -> None:
    assert decode(msgspec.msgpack.encode([[2, "command", "news"]])) == [ResultsAdded("command")]


def test_an_entry_is_bounded() -> None:
    rung = [ResultsAdded(str(number)) for number in range(2 * MAX_PER_ENTRY + 1)]
    entries = list(in_entries(rung))
    assert [len(entry) for entry in entries] == [MAX_PER_ENTRY, MAX_PER_ENTRY, 1]
    assert [doorbell for entry in entries for doorbell in decode(encode(entry))] == rung
    with pytest.raises(ValueError, match="1001 doorbells in one entry: expected at most 1000"):
        encode(rung[: MAX_PER_ENTRY + 1])
    assert decode(msgspec.msgpack.encode([[2, "c"]] * (MAX_PER_ENTRY + 1))) == []


def test_a_doorbell_with_usual_ids_is_small() -> None:
    ring = CommandQueued("vessel-0123456789", "01JD7Z6V8Q4X2M9T5R3W1Y0K8N")
    assert len(encode([ring] * MAX_PER_ENTRY)) < 60_000
