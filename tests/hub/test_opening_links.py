"""The bound on links between acceptance and welcome, without a server: how it follows the load, and whom it admits."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from fairlead.hub.opening_links import FIRST, LATE, LEAST, MOST, SHARED, TARGET, OpeningLinks
from fairlead.wire.retry import after_refusal, retry_after

STEPS = st.lists(
    st.tuples(st.sampled_from(("open", "claim", "pause", "welcome", "discard")), st.integers(0, 40), st.floats(0, 3)),
    max_size=300,
)


@given(STEPS)
def test_what_is_counted_is_what_was_added_and_not_discarded(steps: list[tuple[str, int, float]]) -> None:
    opening, now = OpeningLinks(), 0.0
    model: dict[int, str] = {}
    for step, link, after in steps:
        now += after
        address = f"a{link % 5}"
        if step == "open" and link not in model and opening.has_room(address, now):
            opening.add(link, address)
            model[link] = address
        elif step == "claim":
            opening.claim_began(link, now)
        elif step == "pause":
            opening.claim_paused(link)
        elif step == "welcome" and link in model:
            opening.welcomed(link, now)
            del model[link]
        elif step == "discard":
            opening.discard(link)
            model.pop(link, None)
        assert len(opening) == len(model)
        assert LEAST <= opening.bound <= MOST
        assert opening.oldest_claim(now) >= 0
    for link in model:
        opening.discard(link)
    assert len(opening) == 0
    assert opening.oldest_claim(now) == 0
    assert opening.has_room("a", now)


class Storm:
    """Agents that arrive at a node which welcomes `rate` of them a second, one after the other in their order."""

    def __init__(self, rate: float) -> None:
        self.opening = OpeningLinks()
        self.rate = rate
        self.welcomed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.longest = 0.0
        self.most = 0
        self._waiting: deque[tuple[int, str, float]] = deque()
        self._ids = itertools.count()
        self._served = 0.0

    def play(self, arrivals: list[tuple[float, str]], until: float, *, returning: bool = False) -> None:
        """`arrivals` are times and addresses. Whoever is refused comes back when the node says so, or not at all."""
        draw = random.Random(7).random
        heapq.heapify(arrivals)
        while True:
            arrives = arrivals[0][0] if arrivals else until
            serves = max(self._served, self._waiting[0][2]) + 1 / self.rate if self._waiting else until
            now = min(arrives, serves)
            if now >= until:
                return
            if serves <= arrives:
                link, address, came = self._waiting.popleft()
                self._served = now
                self.longest = max(self.longest, now - came)
                self.opening.welcomed(link, now)
                self.welcomed[address] += 1
            else:
                address = heapq.heappop(arrivals)[1]
                if self.opening.has_room(address, now):
                    link = next(self._ids)
                    self.opening.add(link, address)
                    self.opening.claim_began(link, now)
                    self._waiting.append((link, address, now))
                    self.most = max(self.most, len(self.opening))
                else:
                    self.refused[address] += 1
                    after = retry_after(self.opening.return_time(now), draw())
                    if returning:
                        heapq.heappush(arrivals, (now + after_refusal(after, draw()) / 1000, address))


def even(often: float, seconds: float, address: str = "a") -> list[tuple[float, str]]:
    return [(n / often, address) for n in range(int(often * seconds))]


def test_a_node_under_three_times_its_load_works_all_the_time_and_nobody_waits_long() -> None:
    for rate in (20.0, 100.0, 2_000.0):
        storm = Storm(rate)
        storm.play(even(3 * rate, 20), 20)
        assert sum(storm.welcomed.values()) > 0.95 * 20 * rate
        assert storm.longest <= max(4 * TARGET, FIRST / rate) + 1 / rate


def test_a_node_that_loses_nearly_all_its_cpu_welcomes_what_it_still_can() -> None:
    storm = Storm(4_000)
    storm.play(even(8_000, 3), 3)
    storm.rate, before = 40, sum(storm.welcomed.values())
    storm.play([(3 + at, address) for at, address in even(800, 120)], 123)
    assert sum(storm.welcomed.values()) - before > 0.95 * 120 * 40
    storm.longest = 0.0
    storm.play([(123 + at, address) for at, address in even(800, 20)], 143)
    assert storm.longest <= LATE, "it has found its new bound"


def test_nobody_is_refused_by_a_node_that_takes_what_arrives() -> None:
    storm = Storm(3_000)
    storm.play(even(2_900, 5), 6)
    assert not storm.refused
    assert storm.opening.bound == FIRST, "nothing has shown that more is possible"


def test_the_bound_doubles_in_the_time_of_a_claim() -> None:
    storm = Storm(10_000)
    storm.play(even(200_000, 0.4), 0.4)
    assert storm.most > 8 * FIRST


def test_the_storm_of_one_address_does_not_keep_others_out() -> None:
    storm = Storm(200)
    arrivals = even(20_000, 20, "loop")
    for n in range(100):
        arrivals += [(n / 10 + second, f"quiet-{n % 25}") for second in range(10)]
    storm.play(arrivals, 21)
    quiet = sum(count for address, count in storm.refused.items() if address != "loop")
    served = sum(count for address, count in storm.welcomed.items() if address != "loop")
    assert served > 0.9 * 1000, (served, quiet)
    assert storm.welcomed["loop"] > 0.9 * (20 * 200 - 1000), "it has what the others leave"


def test_two_addresses_in_a_storm_share_the_node() -> None:
    storm = Storm(500)
    storm.play(even(5_000, 20, "a") + even(500, 20, "b"), 20)
    assert storm.welcomed["b"] > 0.2 * 500 * 20


def test_one_address_leaves_room_for_another() -> None:
    opening = OpeningLinks()
    count = 0
    while opening.has_room("a", 0.0):
        opening.add(count, "a")
        count += 1
    assert count == FIRST * SHARED
    assert opening.has_room("b", 0.0)


def test_a_claim_that_does_not_end_stops_acceptance_and_a_pause_of_redis_does_not() -> None:
    opening = OpeningLinks()
    opening.add(1, "a")
    assert opening.has_room("b", 100.0), "an agent that has not said hello delays nobody"
    opening.claim_began(1, 100.0)
    assert opening.has_room("b", 100.0 + LATE)
    assert not opening.has_room("b", 100.1 + LATE)
    opening.claim_paused(1)
    assert opening.has_room("b", 100.1 + LATE)
    opening.claim_began(1, 200.0)
    opening.welcomed(1, 200.1)
    assert (len(opening), opening.bound) == (0, FIRST)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_the_more_are_refused_the_later_they_return(pauses: list[float]) -> None:
    opening, now = OpeningLinks(), 0.0
    least = opening.return_time(now)
    for pause in pauses:
        now += pause
        assert opening.return_time(now) > 0
    assert opening.return_time(now) >= least
    assert opening.return_time(now + 1_000) <= least * 1.01


def test_refused_agents_are_told_to_return_when_they_can_be_taken() -> None:
    storm = Storm(3_000)
    storm.play(even(100_000, 0.1), 8, returning=True)
    assert sum(storm.welcomed.values()) == 10_000
    assert sum(storm.refused.values()) < 15_000


def test_a_fleet_that_is_far_too_large_is_told_to_wait_long() -> None:
    storm = Storm(100)
    storm.play(even(10_000, 10), 60, returning=True)
    assert sum(storm.welcomed.values()) > 0.95 * 60 * 100
    assert sum(storm.refused.values()) < 5 * 100_000, "each tries every 13 s on average"
