"""A chain of ticket keys: all copies of it have the same keys at the same time, and no key is used twice."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from fairlead.carrier.tls.ticket_key_chain import OVERLAP, PERIOD, TicketKeyChain
from fairlead.carrier.tls.ticket_keys import SIZE

times = st.lists(st.floats(0, 40 * PERIOD, allow_nan=False), max_size=20).map(sorted)


@given(st.binary(min_size=32, max_size=64), times, times, st.floats(40 * PERIOD, 80 * PERIOD))
def test_copies_that_were_asked_at_other_times_have_the_same_keys(
    secret: bytes, asked: list[float], also: list[float], now: float
) -> None:
    one, other = TicketKeyChain(secret, 0.0), TicketKeyChain(secret, 0.0)
    for moment in asked:
        one.keys(moment)
    for moment in also:
        other.keys(moment)
    assert one.keys(now) == other.keys(now) == copy.deepcopy(one).keys(now)


@given(st.binary(min_size=32, max_size=64), st.integers(1, 30))
def test_a_key_encrypts_for_one_period_and_decrypts_for_two_hours_more(secret: bytes, periods: int) -> None:
    chain = TicketKeyChain(secret, 0.0)
    used: list[bytes] = []
    for period in range(periods):
        begin = period * PERIOD
        current, *before = chain.keys(begin)
        assert len(current) == SIZE
        assert before == used[-1:]
        assert chain.keys(begin + OVERLAP - 1) == [current, *before]
        assert chain.keys(begin + OVERLAP) == chain.keys(begin + PERIOD - 1) == [current]
        used.append(current)
    assert len(set(used)) == periods


@given(st.binary(min_size=32, max_size=64))
def test_the_chain_forgets_what_it_was_made_of(secret: bytes) -> None:
    """No copy of the process can derive the keys of the past."""
    chain = TicketKeyChain(secret, 0.0)
    (first,) = chain.keys(0.0)
    chain.keys(PERIOD + OVERLAP)
    kept = b"".join(value for value in vars(chain).values() if isinstance(value, bytes))
    assert secret not in kept
    assert first not in kept
