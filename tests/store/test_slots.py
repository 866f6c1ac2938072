from __future__ import annotations

from binascii import crc_hqx
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.bus.inbox import inbox_key
from fairlead.fleet import schema
from fairlead.store.cluster.slots import key_of, opposite, slot_of
from fairlead.store.reply import Arg

SLOTS = 16_384


def primary_of(key: str, primaries: int) -> int:
    """Among primaries with equal ranges of slots, as `--cluster create` makes them."""
    return slot_of(key) * primaries // SLOTS


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("GET", "k"), "k"), (("XINFO", "STREAM", "k"), "k"), (("MEMORY", "USAGE", b"k"), b"k"), (("PING",), None),
        (("INFO", "memory"), None), (("SCAN", b"0"), None), (("DBSIZE",), None), (("TIME",), None),
    ],
)  # fmt: skip
def test_the_key_of_a_command(command: tuple[Arg, ...], key: object) -> None:
    assert key_of(command) == key


@given(st.text(max_size=40))
def test_the_slot_is_that_of_the_hash_tag(tag: str) -> None:
    inside = tag.partition("}")[0]
    if inside:
        assert slot_of(f"x:{{{tag}}}:y") == crc_hqx(inside.encode(errors="replace"), 0) % SLOTS


@given(st.from_regex(r"[a-z0-9-]{1,20}#[0-9a-f]{12}", fullmatch=True))
def test_the_streams_of_an_inbox_are_far_apart(lease: str) -> None:
    first, second = slot_of(inbox_key(lease)), slot_of(inbox_key(opposite(lease)))
    assert abs(abs(first - second) - SLOTS // 2) <= 512
    assert opposite(lease) == opposite(lease)
    for primaries in (3, 4, 5, 6, 9):
        assert primary_of(inbox_key(lease), primaries) != primary_of(inbox_key(opposite(lease)), primaries)


@pytest.mark.parametrize("primaries", [2, 3, 4, 5, 6, 9])
def test_no_primary_has_all_copies_of_the_table_of_nodes(primaries: int) -> None:
    copies = range(len(schema.MEMBERSHIP))
    owners = {primary_of(schema.nodes_key(copy), primaries) for copy in copies}
    assert len(owners) == min(primaries, 3)
    slots = sorted(slot_of(schema.nodes_key(copy)) for copy in copies)
    assert all(second - first > SLOTS // 4 for first, second in pairwise(slots))
    for copy in copies:
        assert slot_of(schema.nodes_key(copy)) == slot_of(schema.node_key("any", copy))


def test_the_keys_of_events_share_a_slot() -> None:
    assert len({slot_of(key) for key in (schema.EVENTS, schema.EVENTS_BYTES, schema.EVENTS_TRIMMED)}) == 1
