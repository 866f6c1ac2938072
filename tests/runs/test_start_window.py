"""How many targets of a run may be unanswered: in a fleet that answers at once, far away, slowly, or never."""

from __future__ import annotations

import heapq
from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.routing.runs.targets.start_window import AGE, LEAST, LOT, RATE, Lot, StartWindow


def starts_in(answer: float, seconds: float, pace: float = inf) -> int:
    """How many starts there are in this time by a driver that starts what it may, if each is answered after `answer`
    seconds, and no more than `pace` of them in a second."""
    window, now, count, free = StartWindow(), 0.0, 0, 0.0
    answers: list[tuple[float, int, Lot]] = []
    while now < seconds:
        while answers and answers[0][0] <= now:
            _, _, lot = heapq.heappop(answers)
            window.answered(lot, now)
        if (room := window.room(now)) >= LOT:
            lot = window.started(room, now)
            for number in range(room):
                free = max(free, now) + 1 / pace
                heapq.heappush(answers, (free + answer, count + number, lot))
            count += room
        now += 0.001
    return count


def test_it_begins_with_the_least() -> None:
    window = StartWindow()
    assert window.room(0) == LEAST
    window.started(LEAST, 0)
    assert window.room(AGE / 2) == 0


def test_an_answer_makes_room_once() -> None:
    window = StartWindow()
    lot = window.started(LEAST, 0)
    for _ in range(LEAST - 1):
        window.answered(lot, 0.01)
    assert window.room(0.01) == LEAST - 1
    assert window.room(AGE) == LEAST, "the last one is old"
    window.answered(lot, 2 * AGE)
    assert window.room(2 * AGE) == LEAST, "and its answer makes no more room"


def test_a_fleet_that_answers_slowly_gets_no_queue() -> None:
    """Two thousand answers a second, one after the other: no more are ahead of them than the window has."""
    assert starts_in(0.005, 3.0, pace=2_000) < 3.0 * 2_000 + 2 * LEAST


@pytest.mark.parametrize("answer", [0.005, 0.02, 0.05, 0.09, 0.2, 60.0])
def test_distance_does_not_slow_a_run(answer: float) -> None:
    seconds = 2.0
    assert starts_in(answer, seconds) > RATE * seconds * 0.7


def test_commands_that_take_long_among_short_ones_are_not_waited_for() -> None:
    window = StartWindow()
    short = window.started(LOT, 0)
    for _ in range(LOT):
        window.answered(short, 0.01)
    window.started(LEAST, 0.02)
    assert window.room(0.02) == 0
    assert window.until_older(0.02) == pytest.approx(AGE)
    assert window.room(0.02 + AGE) == LEAST


@pytest.mark.parametrize("absent", [0, LOT // 2, LOT - 1])
def test_agents_that_are_absent_say_nothing_of_how_far_others_are(absent: int) -> None:
    window = StartWindow()
    lot = window.started(LOT, 0)
    for _ in range(absent):
        window.released(lot)
    assert window.room(0.001) == LEAST - LOT + absent
    for _ in range(LOT - absent):
        window.answered(lot, 0.08)
    assert window.room(0.08) == window.size == RATE * 0.08
    window.released(lot)
    assert window.room(0.08) == window.size, "it does not count any more"


def test_there_is_no_time_to_wait_for_if_nothing_counts() -> None:
    window = StartWindow()
    assert window.until_older(0) == inf
    lot = window.started(1, 0)
    window.answered(lot, 0.01)
    assert window.until_older(0.01) == inf
    window.started(1, 0.02)
    assert window.until_older(1.0) == inf, "what is old does not have it looked at again and again"


@given(st.lists(st.tuples(st.sampled_from(["start", "answer", "wait"]), st.integers(0, 200)), max_size=200))
def test_it_counts_what_is_unanswered_and_young(moves: list[tuple[str, int]]) -> None:
    window, now = StartWindow(), 0.0
    lots: list[Lot] = []
    open_of: Counter[int] = Counter()
    for move, number in moves:
        if move == "wait":
            now += number / 1_000
        elif move == "answer" and lots:
            place = number % len(lots)
            if open_of[place]:
                open_of[place] -= 1
                window.answered(lots[place], now)
        elif move == "start" and (count := min(number, window.room(now))):
            open_of[len(lots)] = count
            lots.append(window.started(count, now))
        room = window.room(now)
        counted = sum(open_of[place] for place, lot in enumerate(lots) if now - lot.at < AGE)
        assert room == max(0, window.size - counted)
        assert LEAST <= window.size <= max(LEAST, RATE * AGE)
