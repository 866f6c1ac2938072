"""The records of the journal: whatever happens to the file, reading it gives a true prefix of what was written."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.agent.journal.records import (
    PREFIX,
    VERSION,
    Accepted,
    CommandClosed,
    Entry,
    EventStored,
    Header,
    frame,
)
from fairlead.agent.journal.replay import replay
from fairlead.agent.journal.state import JournalState
from fairlead.wire.messages import Chunk, Cmd, End, Error, Event
from fairlead.wire.outbox import FINISHED

HEAD = Header(VERSION, "memory-1", "edge-1")
IDS = ("c1", "c2", "c3")
payloads = st.binary(max_size=40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("accept"), st.sampled_from(IDS), st.sampled_from(("never", "safe")), payloads),
        st.tuples(st.just("chunk"), st.sampled_from(IDS), payloads),
        st.tuples(st.just("end"), st.sampled_from(IDS), st.none() | st.integers(0, 3)),
        st.tuples(st.just("over"), st.sampled_from(IDS)),
        st.tuples(st.just("event"), st.sampled_from(("e1", "e2")), payloads),
        st.tuples(st.just("stored"), st.sampled_from(("e1", "e2"))),
    ),
    max_size=30,
)


def history(steps: list[tuple[object, ...]]) -> list[Entry]:
    """Records in an order that an agent could write them in."""
    records: list[Entry] = [HEAD]
    following: dict[str, int] = {}
    for step in steps:
        match step:
            case ("accept", str(id), "never" | "safe" as retry, bytes(payload)) if id not in following:
                records.append(Accepted(Cmd(id=id, method="m", payload=payload, retry=retry), 1000))
                following[id] = 0
            case ("chunk", str(id), bytes(payload)) if id in following:
                records.append(Chunk(id=id, n=following[id], kind="stdout", payload=payload))
                following[id] += 1
            case ("end", str(id), lost) if id in following:
                total = lost if isinstance(lost, int) else following[id]
                records.append(End(id=id, total=total, payload=b"1"))
                del following[id]
            case ("over", str(id)):
                records.append(CommandClosed(id))
                following.pop(id, None)
            case ("event", str(id), bytes(payload)):
                records.append(Event(id=id, type="t", payload=payload))
            case ("stored", str(id)):
                records.append(EventStored(id))
    return records


def state_of(records: list[Entry]) -> JournalState:
    state = JournalState()
    for record in records:
        state.apply(record, len(frame(record)))
    return state


histories = STEPS.map(history)


def boundaries(records: list[Entry]) -> list[int]:
    ends = [0]
    for record in records:
        ends.append(ends[-1] + len(frame(record)))
    return ends


@given(histories)
def test_records_are_read_as_they_were_written(records: list[Entry]) -> None:
    data = b"".join(map(frame, records))
    found = replay(data)
    assert (found.end, found.torn, found.damage) == (len(data), False, "")
    assert found.state == state_of(records)


@given(histories, st.data())
def test_a_file_cut_anywhere_is_a_prefix(records: list[Entry], data: st.DataObject) -> None:
    whole = b"".join(map(frame, records))
    ends = boundaries(records)
    cut = data.draw(st.integers(0, len(whole)))
    found = replay(whole[:cut])
    count = sum(end <= cut for end in ends) - 1
    assert not found.damage
    assert found.end == ends[count]
    assert found.torn == (cut not in ends)
    assert found.state == state_of(records[:count])


@given(histories, st.data(), st.integers(1, 5000))
def test_bytes_that_were_never_written_are_a_torn_tail(records: list[Entry], data: st.DataObject, zeros: int) -> None:
    """After a power cut the file may be longer than what the disk has of it."""
    whole = b"".join(map(frame, records))
    cut = data.draw(st.integers(0, len(whole)))
    found = replay(whole[:cut] + b"\0" * zeros)
    assert not found.damage
    count = boundaries(records).index(found.end)  # one record more than was written, if its rest is zeros
    assert found.end >= cut or found.end == max(end for end in boundaries(records) if end <= cut)
    assert found.torn
    assert found.state == state_of(records[:count])


@given(histories, st.data())
def test_a_changed_byte_is_always_detected(records: list[Entry], data: st.DataObject) -> None:
    whole = bytearray(b"".join(map(frame, records)))
    ends = boundaries(records)
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    found = replay(bytes(whole))
    count = sum(end <= at for end in ends) - 1
    assert found.end == ends[count]
    assert found.state == state_of(records[:count])
    # In the body of the very last record it looks like a tail; anywhere else it is a hole, and told.
    assert found.torn == (count == len(records) - 1 and at >= ends[count] + PREFIX)
    assert bool(found.damage) is not found.torn


@given(st.binary(max_size=400))
def test_random_bytes_are_not_a_journal(data: bytes) -> None:
    found = replay(data)
    assert found.end == 0
    assert found.state == JournalState()


@given(histories)
def test_the_compacted_records_restore_the_same_state(records: list[Entry]) -> None:
    state = state_of(records)
    again = replay(b"".join(map(frame, state.records()))).state
    assert again.finished.keys() == state.finished.keys()
    assert list(again.finished) == list(state.finished)
    assert again.events.keys() == state.events.keys()
    assert again.commands.keys() == state.commands.keys()
    for command, journaled in state.commands.items():
        other = again.commands[command]
        assert (other.next, other.end, other.expiry) == (journaled.next, journaled.end, journaled.expiry)
        assert [c for c, _ in other.chunks] == [c for c, _ in journaled.chunks]
        for now in (0, 999, 1000):
            assert other.may_restart(now) == journaled.may_restart(now)
        if journaled.may_restart(0):
            assert other.cmd == journaled.cmd
    assert again.live == sum(len(frame(r)) for r in again.records())


@given(histories)
def test_live_bytes_count_only_records_that_are_needed(records: list[Entry]) -> None:
    state = state_of(records)
    size = sum(len(frame(r)) for r in records)
    kept = [*state.finished.values(), *(held for _, held in state.events.values()), len(frame(HEAD))]
    for journaled in state.commands.values():
        kept += [journaled.size, *(held for _, held in journaled.chunks)]
    assert state.live == sum(kept) <= size


def test_stored_chunks_are_not_live() -> None:
    state = state_of([HEAD, Accepted(Cmd(id="c1", method="m", payload=b"{}", retry="safe"), 1000)])
    assert state.commands["c1"].may_restart(999)
    before = state.live
    for n in range(5):
        chunk = Chunk(id="c1", n=n, kind="stdout", payload=b"x" * 100)
        state.apply(chunk, len(frame(chunk)))
    state.stored("c1", 3)
    assert [c.n for c, _ in state.commands["c1"].chunks] == [3, 4]
    state.stored("c1", 5)
    assert state.live == before
    accepted = list(state.records())[1]
    assert isinstance(accepted, Accepted)
    assert (accepted.first, accepted.spent, accepted.cmd.payload) == (5, True, b"")


def test_the_ids_of_the_last_commands_are_kept() -> None:
    state = state_of([HEAD, *(CommandClosed(f"c{n}") for n in range(FINISHED + 10))])
    assert list(state.finished) == [f"c{n}" for n in range(10, FINISHED + 10)]
    assert state.live == len(frame(HEAD)) + sum(state.finished.values())


@pytest.mark.parametrize(
    "record",
    [HEAD, Chunk(id="c1", n=1, kind="stdout"), {"t": 120, "id": "later"}, {"t": 6, "id": "c1"}, [1, 2]],
    ids=["second head", "gap", "unknown", "incomplete", "no record"],
)
def test_a_complete_record_with_invalid_content_is_damage(record: object) -> None:
    before: list[Entry] = [HEAD, Accepted(Cmd(id="c1", method="m"), 1000)]
    body = msgspec.msgpack.encode(record)
    head = struct.pack("!II", len(body), zlib.crc32(body))
    data = b"".join(map(frame, before))
    found = replay(data + head + struct.pack("!I", zlib.crc32(head)) + body)
    assert found.end == len(data)
    assert f"byte {len(data)}" in found.damage
    assert not found.torn


def test_a_file_without_a_header_is_damage() -> None:
    found = replay(frame(End(id="c1", total=0, state="error", error=Error(code="x"))))
    assert found.end == 0
    assert "head" in found.damage
