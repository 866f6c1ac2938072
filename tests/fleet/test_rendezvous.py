"""Rendezvous hashing: nodes agree without messages, work is spread evenly, and one node more or less moves little of
it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.node_table import choose

leases = st.lists(st.text("abcdef0123456789#-", min_size=1, max_size=12), min_size=1, max_size=20, unique=True)
works = st.text(max_size=12)


@given(leases=leases, work=works, count=st.integers(1, 3), order=st.randoms())
def test_all_nodes_choose_the_same(leases: list[str], work: str, count: int, order: st.randoms) -> None:  # type: ignore[valid-type]
    found = choose(work, leases, count)
    shuffled = list(leases)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose(work, shuffled, count) == found
    assert len(found) == len(set(found)) == min(count, len(leases))
    assert set(found) <= set(leases)


@given(leases=leases, work=works, gone=st.integers(0, 19))
def test_a_leaving_node_moves_only_its_own_work(leases: list[str], work: str, gone: int) -> None:
    first, *_ = choose(work, leases)
    rest = [lease for lease in leases if lease != leases[gone % len(leases)]]
    if rest and first in rest:
        assert choose(work, rest) == [first]


def test_work_is_spread_evenly_and_differently_in_each_round() -> None:
    nodes = [f"gateway-{n}#{n:012x}" for n in range(10)]
    done = Counter(
        choose(f"due {round_number} {shard}", nodes)[0] for round_number in range(1_000) for shard in range(16)
    )
    assert set(done) == set(nodes)
    assert all(1_400 < count < 1_800 for count in done.values())  # of 1,600
