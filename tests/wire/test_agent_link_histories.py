"""The agent's end of a link in random histories: whatever is lost, each side stores everything once and in order, and
memory does not grow.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.wire.agent_history import COMMANDS, SMALL, AgentHistory

commands = st.sampled_from(COMMANDS)
sizes = st.integers(0, SMALL // 2)
"""A window moves in halves: a larger chunk could wait for ever."""
some = st.integers(1, 6)
STEPS = st.one_of(
    st.tuples(st.just("produce"), commands, sizes),
    st.tuples(st.just("feed"), commands, sizes),
    st.tuples(st.just("take"), commands, st.booleans()),
    st.tuples(st.just("agent_reads"), some),
    st.tuples(st.just("gateway_reads"), some),
    st.tuples(st.just("gateway_stores"), some),
    st.tuples(
        st.sampled_from(("lose", "greet", "give_up", "resume", "resume", "die")), st.integers(0, 4), st.integers(0, 4)
    ),
    st.tuples(st.sampled_from(("end", "emit")), commands),
)


@pytest.mark.timeout(360)  # 5 s; but hypothesis takes up to 300 s more to shorten a history that fails
@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, min_size=40, max_size=160))
def test_any_history_of_links_delivers_everything_once(steps: list[tuple[Any, ...]]) -> None:
    history = AgentHistory()
    for name, *arguments in steps:
        getattr(history, name)(*arguments)
        history.memory_is_bounded()
        history.the_memory_is_what_the_outbox_holds()
        history.everything_is_in_order_and_once()
    history.settle()
