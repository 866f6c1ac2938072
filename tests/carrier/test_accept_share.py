"""The rule by which processes share the connections of a socket: evenly, without waiting for one that is stopped."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fairlead.carrier.accept.accept_share import (
    LEAST_SLACK,
    MEMORY,
    PATIENCE,
    SLACK_SHIFT,
    UNAVAILABLE,
    UNLIMITED,
    AcceptShare,
)

ANY_LOAD = st.one_of(st.integers(0, 3), st.integers(0, 5_000), st.just(UNAVAILABLE))
LOADS = st.lists(ANY_LOAD, min_size=1, max_size=9)


def slack_of(loads: Sequence[int]) -> int:
    return max(LEAST_SLACK, max(loads) >> SLACK_SHIFT)


@given(LOADS)
def test_one_may_always_accept_and_it_has_the_fewest(loads: list[int]) -> None:
    answers = [AcceptShare(own).decide(loads, [0] * len(loads), 0.0) for own in range(len(loads))]
    fewest = loads.index(min(loads))
    assert answers[fewest][0] > 0
    for most, turn in answers:
        assert most > 0 or answers[turn][0] > 0, "it left its turn to one that may not accept either"


@given(LOADS)
def test_nobody_takes_so_many_that_it_passes_the_others_by_more_than_the_slack(loads: list[int]) -> None:
    for own, load in enumerate(loads):
        others = [one for number, one in enumerate(loads) if number != own and one != UNAVAILABLE]
        most, _ = AcceptShare(own).decide(loads, [0] * len(loads), 0.0)
        if not others:
            assert most == UNLIMITED, "nobody else can accept"
        elif most:
            assert load + most <= min(others) + slack_of(others)


class WorkerProcesses:
    """Processes that look at one socket in an order that the test chooses, each as often as it is asked to."""

    def __init__(self, loads: list[int], stopped: set[int]) -> None:
        self.loads = loads
        self.looks = [0] * len(loads)
        self.shares = [AcceptShare(own) for own in range(len(loads))]
        self.stopped = stopped
        self.waiting = 0

    def look(self, number: int, now: float) -> None:
        if number in self.stopped or not self.waiting:
            return
        self.looks[number] += 1
        most, _ = self.shares[number].decide(self.loads, self.looks, now)
        accepted = min(most, self.waiting)
        self.loads[number] += accepted
        self.waiting -= accepted


@given(
    st.lists(st.integers(0, 2_000), min_size=2, max_size=8),
    st.lists(st.integers(0, 7), min_size=1, max_size=50),
    st.integers(1, 3_000),
)
def test_connections_make_uneven_processes_even(loads: list[int], order: list[int], arrivals: int) -> None:
    workers = WorkerProcesses(loads, set())
    before = max(loads)
    workers.waiting = arrivals
    rounds = 0
    while workers.waiting:  # everyone looks, but in an order in which some come twice and first
        for number in [*(n % len(loads) for n in order), *range(len(loads))]:
            workers.look(number, 0.0)
        rounds += 1
        assert rounds <= arrivals, "no process may accept, and connections wait"
    assert max(loads) <= max(before, min(loads) + slack_of(loads))


@given(
    st.lists(st.integers(0, 2_000), min_size=2, max_size=8),
    st.sets(st.integers(0, 7)),
    st.integers(1, 500),
    st.floats(0, 1e6),
)
def test_each_stopped_process_delays_the_others_once(
    loads: list[int], stopped: set[int], arrivals: int, start: float
) -> None:
    stopped = {number for number in stopped if number < len(loads)}
    running = [number for number in range(len(loads)) if number not in stopped]
    if not running:
        return
    workers = WorkerProcesses(loads, stopped)
    before = {number: loads[number] for number in stopped}
    now, delays = start, 0
    workers.waiting = arrivals
    while workers.waiting:
        left = workers.waiting
        for number in running:
            workers.look(number, now)
        if workers.waiting == left:
            delays += 1
            now += PATIENCE * 1.001
        assert delays <= len(stopped), "each of those that are stopped is waited for once"
    assert {number: loads[number] for number in stopped} == before


def test_what_was_seen_long_ago_proves_nothing() -> None:
    share = AcceptShare(0)
    assert share.decide([100, 0], [1, 7], 10.0) == (0, 1)
    assert share.decide([100, 0], [2, 7], 10.0 + 2 * MEMORY) == (0, 1), "it may have had nothing to accept since"
    assert share.decide([100, 0], [3, 7], 10.0 + 2 * MEMORY + 1.5 * PATIENCE) == (UNLIMITED, 0)


def test_a_process_that_looks_again_is_waited_for_again() -> None:
    share = AcceptShare(0)
    share.decide([100, 0, 90], [1, 7, 0], 10.0)
    assert share.decide([100, 0, 95], [2, 8, 0], 10.0 + PATIENCE) == (0, 1)
    most, _ = share.decide([100, 0, 98], [3, 8, 0], 10.0 + 2.5 * PATIENCE)
    assert most == 98 + LEAST_SLACK - 100, "of the other one it takes its share and no more"


def test_a_process_that_takes_no_links_leaves_all_to_those_that_do() -> None:
    assert AcceptShare(0).decide([UNAVAILABLE, 5_000, 4_000], [0, 0, 0], 0.0) == (0, 2)
    assert AcceptShare(1).decide([UNAVAILABLE, 5_000, UNAVAILABLE], [0, 0, 0], 0.0) == (UNLIMITED, 1)
    assert AcceptShare(0).decide([UNAVAILABLE, UNAVAILABLE], [0, 0], 0.0) == (UNLIMITED, 0), "somebody has to refuse"
