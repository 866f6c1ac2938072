"""Penalties of an address and the shares of the accept rate, without a server."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fairlead.app.access.accept_rate import AcceptRate
from fairlead.app.access.penalties import ADDRESSES, CEILING, FREE, HALF_LIFE, MOST, Penalties


def test_failed_credentials_are_answered_with_delay_and_then_with_429() -> None:
    penalties = Penalties()
    found = [penalties.fail("a", n / 100, 1.0) for n in range(200)]
    assert all(one.delay == 0 and one.retry_after == 0 for one in found[: int(FREE)])
    delays = [one.delay for one in found]
    assert delays[int(FREE)] > 0
    assert max(delays) == delays[-1] == MOST
    assert penalties.fail("a", 2.0, 0.0).delay == MOST / 2, "they do not all fall due at once"
    first = next(n for n, one in enumerate(found) if one.retry_after)
    assert 25 < first < 40
    assert all(one.retry_after > 0 for one in found[first:])
    assert penalties.fail("b", 2.0, 0.5).delay == 0, "another address has done nothing"
    later = penalties.fail("a", 2.0 + 10 * HALF_LIFE, 0.5)
    assert (later.delay, later.retry_after) == (0, 0), "it is forgiven"


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    penalties = Penalties()
    for n in range(3 * ADDRESSES):
        penalties.fail(str(n), n / 1e6, 0.5)
    assert len(penalties) == ADDRESSES


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100), st.floats(0, 1)), max_size=300))
def test_a_penalty_has_a_maximum(failures: list[tuple[str, float, float]]) -> None:
    penalties, now = Penalties(2), 0.0
    for key, after, draw in failures:
        now += after
        penalty = penalties.fail(key, now, draw)
        assert 0 <= penalty.delay <= MOST
        assert 0 <= penalty.retry_after <= 2 * HALF_LIFE + 1
    assert CEILING / 4 <= 30, "two half-lives after the last failure the answer is 401 again"


def accepted(rate: AcceptRate, tries: dict[str, float], seconds: float, began: float = 0.0) -> dict[str, int]:
    """How many links each address gets that tries so many times a second."""
    phases = {key: random.Random(key).random() for key in tries}
    due = sorted(
        (began + (n + phases[key]) / often, key) for key, often in tries.items() for n in range(int(seconds * often))
    )
    got = dict.fromkeys(tries, 0)
    for at, key in due:
        got[key] += rate.take(key, at)
    return got


def test_a_single_address_has_the_whole_rate() -> None:
    rate = AcceptRate(200)
    got = accepted(rate, {"nat": 5000}, 10)
    assert 10 * 200 <= got["nat"] <= 10 * 200 + 2 * 200 + 1


def test_one_looping_address_does_not_keep_others_out() -> None:
    rate = AcceptRate(200)
    got = accepted(rate, {"loop": 10_000, "a": 1, "b": 5, "c": 0.5}, 20)
    assert (got["a"], got["b"], got["c"]) == (20, 100, 10)
    assert got["loop"] >= 20 * 150


def test_many_addresses_get_most_of_the_rate_beside_a_looping_one() -> None:
    rate = AcceptRate(200)
    accepted(rate, {"loop": 10_000}, 10)
    crowd = {f"10.0.{n // 256}.{n % 256}": 0.3 for n in range(1000)}
    got = accepted(rate, {"loop": 10_000, **crowd}, 10, began=10.0)
    assert sum(n for key, n in got.items() if key != "loop") > 0.8 * 10 * 200


def test_a_fleet_behind_one_address_gets_its_share_beside_a_looping_one() -> None:
    rate = AcceptRate(200)
    got = accepted(rate, {"loop": 20_000, "nat": 1000}, 20)
    assert got["nat"] > 20 * 200 / 4
    assert sum(got.values()) <= 20 * 200 + 2 * 200 + 101


@given(st.floats(0.1, 1000), st.lists(st.tuples(st.integers(0, 5), st.floats(0, 2)), max_size=200))
def test_no_more_than_the_rate_is_accepted(rate: float, tries: list[tuple[int, float]]) -> None:
    bucket, now, taken = AcceptRate(rate), 100.0, 0
    for key, after in tries:
        now += after
        taken += bucket.take(str(key), now)
    assert taken <= (now - 100.0) * rate + 2 * rate + max(rate / 2, 1) + 1e-6
