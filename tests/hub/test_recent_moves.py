"""Which agents a rebalance may move again, and that what is remembered of them is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.hub.recent_moves import LEAST_PRUNED, MOVE_PERIOD_MS, RecentMoves

NOW = 1_700_000_000_000


@given(st.integers(0, 3 * MOVE_PERIOD_MS))
def test_agent_may_be_moved_once_an_hour(ago: int) -> None:
    recent = RecentMoves()
    recent.note("agent", NOW - ago, NOW)
    assert recent.may_move("agent", NOW) is (ago >= MOVE_PERIOD_MS)
    assert recent.may_move("agent", NOW - ago + MOVE_PERIOD_MS)
    assert recent.may_move("another", NOW)


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
