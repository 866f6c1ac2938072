"""The reconnect policy: spread, growth, bounds."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.messages import Retry
from fairlead.wire.retry import (
    HANDED_OUT_MS,
    LONGEST_MS,
    NAMED_LEAST_MS,
    QUICK,
    STABLE_MS,
    RetryPolicy,
    after_refusal,
    first_ceiling,
    pause,
    retry_after,
)

ALMOST_ONE = 1 - 2**-53
policies = st.builds(
    RetryPolicy, first=st.integers(0, 1 << 53), base=st.integers(0, 1 << 53), cap=st.integers(0, 1 << 53)
)
draws = st.floats(0, 1, exclude_max=True)


def test_the_ceilings_of_the_default_policy() -> None:
    """As docs/protocol.md lists them."""
    policy = RetryPolicy()
    ceilings = [round(policy.delay(attempt, ALMOST_ONE)) for attempt in range(12)]
    assert ceilings == [1_000] * 5 + [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_the_first_retry_has_its_own_ceiling() -> None:
    """A node with 12,000 links that accepts 200 a second asks for a minute."""
    policy = RetryPolicy(first=60_000, base=1_000, cap=60_000)
    assert policy.delay(0, 0.5) == 30_000
    assert policy.delay(1, 0.5) == 500


@given(policies, st.integers(0, 1 << 40), draws)
def test_a_delay_lies_between_zero_and_its_ceiling(policy: RetryPolicy, attempt: int, draw: float) -> None:
    delay = policy.delay(attempt, draw)
    assert 0 <= delay <= (policy.first if attempt == 0 else policy.cap)


@given(policies, st.integers(0, 100))
def test_delays_use_the_whole_range(policy: RetryPolicy, attempt: int) -> None:
    """Full jitter: nobody waits a fixed part, so that a fleet is spread evenly."""
    assert policy.delay(attempt, 0.0) == 0
    top = policy.delay(attempt, ALMOST_ONE)
    assert policy.delay(attempt, 0.5) == pytest.approx(top / 2)


@given(policies, st.integers(1, 60))
def test_ceilings_never_shrink(policy: RetryPolicy, attempt: int) -> None:
    assert policy.delay(attempt, 0.5) <= policy.delay(attempt + 1, 0.5)


def test_a_link_that_is_down_for_days_computes_no_huge_numbers() -> None:
    assert RetryPolicy().delay(10**12, 0.5) == 30_000


def test_the_default_policy_is_that_of_welcome() -> None:
    retry, policy = Retry(), RetryPolicy()
    assert (retry.first, retry.base, retry.cap) == (policy.first, policy.base, policy.cap)
    assert STABLE_MS == 60_000


# -- what an agent makes of it ---------------------------------------------------------------------


@given(policies, st.integers(0, 100), draws)
def test_no_policy_of_a_gateway_makes_an_agent_sleep_longer_than_ten_minutes(
    policy: RetryPolicy, attempt: int, draw: float
) -> None:
    bounded = policy.bounded()
    assert bounded.delay(attempt, draw) <= LONGEST_MS
    assert bounded.slow(draw) <= LONGEST_MS


@given(st.floats(0, 1e300), st.integers(0, 1 << 40), draws)
def test_a_pause_is_as_asked_within_the_agents_own_bounds(asked: float, attempt: int, draw: float) -> None:
    waited = pause(asked, attempt, draw)
    assert waited <= LONGEST_MS
    if NAMED_LEAST_MS <= asked <= LONGEST_MS or (attempt <= QUICK and asked <= LONGEST_MS):
        assert waited == asked
    elif asked > LONGEST_MS:
        assert waited >= LONGEST_MS / 2, "spread, or all that were told the same would come back in one instant"
    else:
        assert waited >= RetryPolicy().delay(attempt, draw)


@given(st.lists(draws, min_size=200, max_size=200))
def test_a_gateway_that_asks_for_no_pause_gets_the_default_ones(drawn: list[float]) -> None:
    """`retry: {first: 0, base: 0, cap: 0}`, or a bye that says 0 each time."""
    zero = RetryPolicy(0, 0, 0)
    pauses = [pause(zero.delay(attempt, draw), attempt, draw) for attempt, draw in enumerate(drawn)]
    assert pauses[: QUICK + 1] == [0.0] * (QUICK + 1)
    assert pauses[QUICK + 1 :] == [
        RetryPolicy().delay(attempt, draw) for attempt, draw in enumerate(drawn) if attempt > QUICK
    ]


def test_agents_of_a_killed_node_of_four_are_back_within_seconds() -> None:
    """2,000 agents; for 9 s the ingress answers one attempt in four with 502, each after 50 ms."""
    rng = random.Random(7)
    gaps = []
    for _ in range(2000):
        now, attempt = 0.0, 0
        while True:
            now += RetryPolicy().delay(attempt, rng.random()) / 1000 + 0.05
            attempt += 1
            if now > 9 or rng.random() >= 0.25:
                break
        gaps.append(now)
    gaps.sort()
    assert gaps[int(0.95 * len(gaps))] <= 5
    assert gaps[-1] <= 15


@pytest.mark.parametrize(
    ("links", "rate", "ceiling"),
    [(0, 200, 1_000), (200, 200, 1_000), (300, 200, 1_500), (6_000, 200, 30_000), (18_000, 200, 30_000)],
)
def test_first_is_the_time_to_accept_all_links_again(links: int, rate: float, ceiling: int) -> None:
    assert first_ceiling(links, rate) == ceiling


@given(st.integers(0, 10**7), st.floats(0, 1e6))
def test_first_is_between_a_second_and_the_longest_pause_handed_out(links: int, rate: float) -> None:
    assert 1_000 <= first_ceiling(links, rate) <= HANDED_OUT_MS


@given(st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_a_refused_agent_is_asked_to_wait_at_least_a_second_and_waits_no_longer_than_is_handed_out(
    most: float, draw: float
) -> None:
    asked = retry_after(most, draw)
    assert 1 <= asked <= most + 1
    assert asked * 1000 <= after_refusal(asked, draw) <= HANDED_OUT_MS


def test_refused_agents_are_spread_evenly() -> None:
    draws = [(i + 0.5) / 10_000 for i in range(10_000)]
    assert Counter(retry_after(4, draw) for draw in draws) == dict.fromkeys(range(1, 6), 2000)
    assert (after_refusal(10, 0.0), after_refusal(10, 0.5)) == (10_000, 12_500)
