"""Memory for incomplete messages: how much each connection may use, and which continues first."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from fairlead.carrier.reading.account import DEFAULT_BUDGET, PausableConnection, ReadAccount
from fairlead.carrier.reading.message_memory import SCARCE, MessageMemory

MIB = 1 << 20


class Keeping:
    """What MessageMemory needs of a connection: an incomplete message of a known size."""

    def __init__(self, kept: int, size: int = MIB) -> None:
        self.kept = kept
        self.size = size

    @property
    def wanted(self) -> int:
        return self.size - self.kept


def account(kept: int, size: int = MIB) -> ReadAccount:
    return ReadAccount(cast(PausableConnection, Keeping(kept, size)), None, DEFAULT_BUDGET)


def keep(one: ReadAccount, kept: int) -> None:
    cast(Any, one.connection).kept = kept


def test_each_connection_may_hold_as_much_as_is_left_of_the_larger_part() -> None:
    room = MessageMemory(4 * MIB)
    first, second = account(MIB), account(MIB)
    room.note(first, 1.0, 0)
    assert not room.crowded(first)
    room.note(second, 2.0, 0)
    assert (room.kept, room.crowded(first), room.crowded(second)) == (2 * MIB, False, False)
    third = account(MIB // 2)
    room.note(third, 3.0, 0)
    assert room.crowded(first)
    assert not room.crowded(third)


def test_small_messages_are_completed_however_little_memory_is_left() -> None:
    room = MessageMemory(2 * MIB)
    for _ in range(4):
        room.note(account(MIB), 1.0, 0)
    small = account(SCARCE)
    room.note(small, 2.0, 0)
    assert not room.crowded(small)


def test_the_oldest_message_is_promised_its_memory_and_its_time_begins_again() -> None:
    room = MessageMemory(4 * MIB)
    ones = [account(MIB // 2) for _ in range(7)]
    for number, one in enumerate(ones):
        room.note(one, 1.0 + number, 0)
    for one in reversed(ones):
        assert room.crowded(one)
        room.wait(one)
    assert list(room.admit(20.0)) == ones[:1], "it lacks half a megabyte, and that much is left"
    assert (ones[0].since, room.crowded(ones[0]), len(room)) == (20.0, False, 6)
    assert list(room.admit(20.0)) == []
    keep(ones[0], 0)
    room.note(ones[0], 21.0, 1)
    assert list(room.admit(21.0)) == ones[1:3]


def test_one_message_is_promised_its_memory_even_when_none_is_left() -> None:
    room = MessageMemory(MIB)
    ones = [account(MIB // 2) for _ in range(9)]
    for number, one in enumerate(ones):
        room.note(one, 1.0 + number, 0)
        room.wait(one)
    assert list(room.admit(10.0)) == ones[:1]
    room.forget(ones[0])
    assert list(room.admit(10.0)) == ones[1:2]


@given(st.lists(st.integers(1, 64), min_size=1, max_size=40), st.integers(2, 64))
def test_every_message_that_arrives_completely_is_delivered(parts: list[int], limit: int) -> None:
    """Whatever was kept when the memory ran out: admitted connections send the rest, until none waits."""
    room = MessageMemory(limit * MIB // 8)
    ones = [account(part * (MIB // 64)) for part in parts]
    for number, one in enumerate(ones):
        room.note(one, 1.0 + number, 0)
    for one in ones:
        if room.crowded(one):
            room.wait(one)
    going = [one for one in ones if not room.crowded(one)]
    ended = 0
    while going or len(room):
        going += room.admit(100.0)
        assert going, "one connection can always continue"
        one = going.pop()
        keep(one, 0)
        room.note(one, 100.0, 1)
        ended += 1
    assert (ended, room.kept, room._promised) == (len(ones), 0, 0)
