"""Tests of swarm.agents.attempts: which delay an agent waits before its next attempt, and what is forgotten when."""

from __future__ import annotations

import pytest

from fairlead.swarm.agents.attempts import MOST_RETRIES, Attempts


def test_an_attempt_is_due_until_it_is_over() -> None:
    attempts = Attempts(2)
    assert attempts.due(1) is None
    attempts.begin(1, 12.5)
    assert (attempts.due(0), attempts.due(1)) == (None, 12.5)
    assert attempts.over(1) == 12.5
    assert attempts.due(1) is None
    assert attempts.over(1) is None


def test_the_attempts_of_each_agent_are_numbered_from_one() -> None:
    attempts = Attempts(2)
    attempts.begin(0, 1.0)
    attempts.begin(1, 2.0)
    attempts.over(0)
    attempts.begin(0, 3.0)
    assert (attempts.conn(0), attempts.conn(1)) == (2, 1)
    for _ in range(300):  # more than a byte holds
        attempts.begin(1, 4.0)
    assert attempts.conn(1) == 301


def test_a_named_delay_is_used_once_and_for_its_agent_alone() -> None:
    attempts = Attempts(2)
    attempts.name_delay(0, 123456.0)
    assert attempts.delay(1, None) != 123456.0
    assert attempts.delay(0, None) == 123456.0
    assert attempts.delay(0, None) != 123456.0


def test_a_given_delay_goes_before_the_named_one_and_ends_it() -> None:
    attempts = Attempts(1)
    attempts.name_delay(0, 123456.0)
    assert attempts.delay(0, 7.0) == 7.0
    assert attempts.delay(0, None) != 123456.0


def test_delays_follow_the_retries_until_the_link_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.5)
    attempts = Attempts(2)
    expected = [attempts.policy.delay(retries, 0.5) for retries in range(12)]
    assert len(set(expected)) > 1
    assert [attempts.delay(0, None) for _ in range(12)] == expected
    assert attempts.delay(1, None) == expected[0]
    attempts.settle(0)
    assert attempts.delay(0, None) == expected[0]


def test_the_count_of_retries_stops_at_what_a_byte_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.5)
    attempts = Attempts(1)
    for _ in range(MOST_RETRIES + 5):
        last = attempts.delay(0, None)
    assert last == attempts.policy.delay(MOST_RETRIES, 0.5)
