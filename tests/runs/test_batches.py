"""The batches of a run: every agent in one of them, in the order of their label, none too large."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidRequest
from fairlead.routing.runs.batches import BATCHES, arrange

agents = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=60, unique=True)


@given(
    agents=agents,
    zones=st.none() | st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.sampled_from(["", "a", "b"])),
    size=st.integers(0, 8),
    share=st.sampled_from([0.0, 0.01, 0.2, 0.5, 1.0]),
)
def test_every_agent_is_in_one_batch_of_agents_that_are_alike(
    agents: list[str], zones: dict[str, str] | None, size: int, share: float
) -> None:
    values = None if zones is None else {agent: zones[agent[:2]] for agent in agents if agent[:2] in zones}
    ordered, ends = arrange(agents, values, size, share)
    assert sorted(ordered) == sorted(agents)
    assert all(start < end for start, end in pairwise((0, *ends, len(agents))))
    batches = [ordered[start:end] for start, end in pairwise((0, *ends, len(agents)))]
    if size:
        assert max(map(len, batches)) <= size
    if values is None:
        assert ordered == agents
        return
    kinds = [{values.get(agent) for agent in batch} for batch in batches]
    assert all(len(kind) == 1 for kind in kinds)
    order = [(value is None, value or "") for (value,) in kinds]
    assert order == sorted(order)
    if not size and not share:
        assert len(order) == len(set(order))


def test_a_share_is_of_what_the_batches_are_chosen_from() -> None:
    assert arrange([f"a{n}" for n in range(10)], None, 0, 0.3)[1] == (3, 6, 9)
    zones = {f"a{n}": "east" if n < 8 else "west" for n in range(10)}
    assert arrange([f"a{n}" for n in range(10)], zones, 0, 0.5)[1] == (4, 8, 9)


def test_too_many_batches_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=f"expected at most {BATCHES}"):
        arrange([f"a{n}" for n in range(BATCHES + 1)], None, 1)
