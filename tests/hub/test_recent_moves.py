"""Which agents a rebalance may move again, and that what is remembered of them is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.hub.recent_moves import CROWDED_PERIOD_MS, LEAST_PRUNED, MOVE_PERIOD_MS, RecentMoves, is_crowded

NOW = 1_700_000_000_000


def living(lease: str) -> bool:
    return lease != "gone#1"


@given(st.integers(0, 3 * MOVE_PERIOD_MS), st.sampled_from(("", "other#1")))
def test_agent_may_be_moved_once_an_hour(ago: int, left: str) -> None:
    recent = RecentMoves()
    recent.note("agent", NOW - ago, NOW, left=left)
    assert recent.may_move("agent", NOW, living, crowded=False) is (ago >= MOVE_PERIOD_MS)
    assert recent.may_move("agent", NOW - ago + MOVE_PERIOD_MS, living, crowded=False)
    assert recent.may_move("another", NOW, living, crowded=False)


def test_agent_that_had_to_leave_its_node_may_be_moved_again() -> None:
    recent = RecentMoves()
    recent.note("agent", NOW, NOW, left="gone#1")
    assert recent.may_move("agent", NOW, living, crowded=False)
    recent.note("agent", NOW, NOW)  # the next move
    assert not recent.may_move("agent", NOW, living, crowded=False)


@given(st.integers(0, 2 * MOVE_PERIOD_MS), st.booleans())
def test_a_node_that_is_nearly_full_waits_for_a_shorter_time_unless_the_agent_came_back(
    ago: int, returned: bool
) -> None:
    recent = RecentMoves()
    recent.note("agent", NOW - ago, NOW, returned=returned)
    period = MOVE_PERIOD_MS if returned else CROWDED_PERIOD_MS
    assert recent.may_move("agent", NOW, living, crowded=True) is (ago >= period)


def test_a_node_is_nearly_full_while_it_has_room_for_few() -> None:
    assert not is_crowded(849, 1000)
    assert is_crowded(850, 1000)


def test_agent_that_was_never_moved_is_not_kept() -> None:
    recent = RecentMoves()
    recent.note("agent", 0, NOW)
    assert len(recent) == 0


def test_moves_that_are_an_hour_old_are_forgotten() -> None:
    recent = RecentMoves()
    for hour in range(20):
        now = NOW + hour * MOVE_PERIOD_MS
        for number in range(LEAST_PRUNED):
            recent.note(f"{hour}-{number}", now, now)
    assert len(recent) <= 2 * LEAST_PRUNED
