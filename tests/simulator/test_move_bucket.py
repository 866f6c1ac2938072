"""The modelled budget of moves grants what the script in Redis grants: both get the same calls, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fleet import schema
from fairlead.fleet.moves.move_bucket import DEBT_SECONDS, MoveBucket
from fairlead.store.reply import items, text
from fairlead_operator.simulator.fleet import move_bucket
from fairlead_operator.simulator.fleet.move_bucket import ModelMoveBucket

from support.fleet.script_server import ScriptServer

RATES = st.sampled_from((0.0, 0.3, 1.0, 7.5, 200.0, 70_000.0))
CALLS = st.lists(
    st.tuples(st.sampled_from((0, 1, 1, 1, 2, 9, 600)), RATES, st.integers(1, 100_000), st.booleans()), max_size=20
)
"""Seconds since the last call, the rate that the operator sets before it, moves, and whether they are overdrawn."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    made = ScriptServer(tmp_path_factory.mktemp("valkey"), cluster=False)
    yield made
    made.close()


@settings(max_examples=30, deadline=None)
@given(CALLS)
def test_it_grants_what_the_script_grants(server: ScriptServer, calls: list[tuple[int, float, int, bool]]) -> None:
    """Seconds pass by moving the bucket's own time stamp back; the model is told when the server's clock was read."""
    server.submit("DEL", schema.MOVES)
    real, model = MoveBucket(server.store), ModelMoveBucket()
    began = server.run(server.time())
    passed = 0
    for seconds, rate, moves, overdraw in calls:
        passed += seconds
        if server.submit("HEXISTS", schema.MOVES, "at"):
            server.submit("HINCRBY", schema.MOVES, "at", -1000 * seconds)
        server.run(real.set_rate(rate, rate, server.run(server.time())))
        grant = server.run(real.take(moves, 0.0, overdraw=overdraw))
        tokens, at = items(server.submit("HMGET", schema.MOVES, "tokens", "at"))
        now = passed + (int(text(at)) - began) / 1000
        if overdraw:
            model.overdraw(moves, rate, now)
            assert grant.moves == moves
        else:
            assert model.take(moves, rate, now) == grant.moves
        assert model.tokens == pytest.approx(float(text(tokens)), abs=1e-3)


def test_a_debt_is_as_long_as_that_of_the_real_budget() -> None:
    assert move_bucket.DEBT_SECONDS == DEBT_SECONDS
