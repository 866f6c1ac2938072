"""Lanes: each keeps its order, none starves, and what waits is taken by weight."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.agent.link.lanes import WEIGHTS, Lanes
from fairlead.wire.messages import Lane

lanes = st.sampled_from(list(WEIGHTS))


@given(st.lists(st.one_of(lanes, st.none()), max_size=200))
def test_each_lane_keeps_its_order_and_loses_nothing(steps: list[Lane | None]) -> None:
    """A lane adds the next number, None takes one."""
    queue: Lanes[tuple[Lane, int]] = Lanes()
    added: dict[Lane, int] = defaultdict(int)
    taken: dict[Lane, list[int]] = defaultdict(list)
    for lane in [*steps, *[None] * len(steps)]:
        if lane is not None:
            queue.add(lane, [(lane, added[lane])])
            added[lane] += 1
        elif queue:
            whose, n = queue.take()
            taken[whose].append(n)
    assert not queue
    assert {lane: list(range(count)) for lane, count in added.items()} == dict(taken)


def test_full_lanes_share_by_their_weights() -> None:
    queue: Lanes[Lane] = Lanes()
    for lane in WEIGHTS:
        queue.add(lane, [lane] * 1_000)
    first = [queue.take() for _ in range(130)]
    assert {lane: first.count(lane) for lane in WEIGHTS} == {"control": 80, "interactive": 40, "bulk": 10}


@given(st.integers(0, 300))
def test_a_message_in_a_quiet_lane_waits_for_one_bulk_message_at_most(before: int) -> None:
    queue: Lanes[str] = Lanes()
    queue.add("bulk", ["bulk"] * 1_000)
    for _ in range(before):
        queue.take()
    queue.add("interactive", ["key"])
    assert "key" in (queue.take(), queue.take())


def test_empty_lanes_give_nothing() -> None:
    with pytest.raises(IndexError):
        Lanes[int]().take()
