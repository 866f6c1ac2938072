"""Profile mixes are exact to the agent, and histograms to the width of their buckets."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.swarm.counters import Counters, LatencyHistogram
from fairlead.swarm.options import parse_sources
from fairlead.swarm.profile import Profile, assign, parse_mix

MIXES = st.dictionaries(st.sampled_from(list(Profile)), st.integers(1, 100), min_size=1)


def test_a_profile_mix_is_parsed() -> None:
    assert parse_mix("idle=90, half-open=10") == {Profile.IDLE: 90, Profile.HALF_OPEN: 10}
    assert parse_mix("storm") == {Profile.STORM: 1}


@pytest.mark.parametrize("text", ["", "idle=", "idle=0", "idle=-1", "idle,idle", "idle=1.5", "busy=1", "idle=9999999"])
def test_an_invalid_profile_mix_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid"):
        parse_mix(text)


@given(MIXES, st.integers(0, 500))
def test_shares_of_profiles_are_exact(mix: dict[Profile, int], agents: int) -> None:
    counts = Counter(assign(mix, agents))
    assert sum(counts.values()) == agents
    for profile, share in mix.items():
        assert abs(counts[profile] - agents * share / sum(mix.values())) < 1


def test_profiles_are_spread_over_the_numbers() -> None:
    assigned = assign({Profile.IDLE: 90, Profile.CHATTY: 10}, 1000)
    assert [assigned[i : i + 100].count(Profile.CHATTY) for i in range(0, 1000, 100)] == [10] * 10


@given(st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_quantiles_are_right_to_the_bucket(values: list[float], q: float) -> None:
    one, two = LatencyHistogram(), LatencyHistogram()
    for i, value in enumerate(values):
        (one if i % 2 else two).add(value)
    one.merge(two)
    exact = sorted(values)[math.ceil(len(values) * q) - 1]
    estimate = one.quantile(q)
    assert estimate is not None
    assert exact / 1.06 <= estimate <= exact * 1.06
    assert (one.count, one.longest) == (len(values), max(values))


def test_an_empty_histogram_has_no_quantile() -> None:
    assert LatencyHistogram().quantile(0.5) is None


def test_counters_of_several_processes_are_added() -> None:
    total = Counters()
    for number in (1, 2):
        one = Counters(lost=number, refused={"429": number, f"only {number}": 1}, last_refusal=f"reason {number}")
        one.connect.add(number)
        total.merge(msgspec.json.decode(msgspec.json.encode(one), type=Counters))
    assert (total.lost, total.last_refusal) == (3, "reason 2")
    assert total.refused == {"429": 3, "only 1": 1, "only 2": 1}
    assert (total.connect.count, total.connect.longest) == (2, 2.0)


def test_source_address_ranges_are_parsed() -> None:
    assert parse_sources(["127.0.0.2-4,127.0.0.9", "127.0.0.2"]) == ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.9")
    assert parse_sources(["::1"]) == ("::1",)
    for wrong in ("127.0.0.4-2", "host", "127.0.0.1-300", "10.0.0.0-"):
        with pytest.raises(ConfigError, match="invalid"):
            parse_sources([wrong])
