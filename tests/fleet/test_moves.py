"""The budget of moves on a real server: what several nodes get at once, under an operator's rate and without one, and
how a debt is repaid. Every answer is compared with a model that is told the same times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fairlead.fleet import schema
from fairlead.fleet.moves.move_bucket import DEBT_SECONDS, MOVE_RATE_VALID_MS, MoveBucket
from fairlead.fleet.moves.move_rate import FULL_SHARE, LEAST_SHARE, move_rate, spare_accept_rate
from fairlead.store.reply import items, text

from support.fleet.script_server import ScriptServer

TOLERANCE = 0.002
"""Seconds: the script counts in milliseconds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    made = ScriptServer(tmp_path_factory.mktemp("valkey"), cluster=False)  # all calls have one key
    yield made
    made.close()


rates = st.sampled_from((0.0, 0.1, 0.7, 1.0, 3.0, 50.0, 200.0, 1_000.0))


class Budget(RuleBasedStateMachine):
    """Time is passed by moving the bucket's own time stamp back, so that a history of minutes takes milliseconds."""

    def __init__(self, server: ScriptServer) -> None:
        super().__init__()
        self.server = server
        self.moves = MoveBucket(server.store)
        self.server.submit("DEL", schema.MOVES)
        self.tokens: float | None = None
        """What the model's bucket holds, at the time of the last call."""
        self.at = 0
        self.set: tuple[float, int] | None = None
        """The operator's rate, and the milliseconds for which it is still valid."""

    def stored(self) -> tuple[float, int]:
        tokens, at = items(self.server.submit("HMGET", schema.MOVES, "tokens", "at"))
        return float(text(tokens)), int(text(at))

    @initialize(rate=rates)
    def begin(self, rate: float) -> None:
        self.own = rate

    @rule(ms=st.sampled_from((1, 5, 20, 100, 250, 1_000, 7_000, 40_000)))
    def wait(self, ms: int) -> None:
        if self.tokens is not None:
            _, at = self.stored()
            self.server.submit("HSET", schema.MOVES, "at", at - ms)
            self.at -= ms
        if self.set is not None:
            rate, until = self.set
            self.set = rate, until - ms
            self.server.submit("HSET", schema.MOVES, "until", until - ms)

    @rule(rate=rates)
    def operator(self, rate: float) -> None:
        now = self.server.run(self.server.time())
        self.server.run(self.moves.set_rate(rate, 2 * rate, now))
        self.set = rate, now + MOVE_RATE_VALID_MS

    @rule(wanted=st.sampled_from((1, 1, 2, 10, 50, 5_000)), overdraw=st.booleans())
    def take(self, wanted: int, overdraw: bool) -> None:
        grant = self.server.run(self.moves.take(wanted, self.own, overdraw=overdraw))
        tokens, at = self.stored()
        by_operator = self.set is not None and self.set[1] > at
        most = self.own if self.set is None else 2 * self.set[0]
        rate = self.set[0] if by_operator and self.set is not None else min(self.own, most)
        assert grant.rate == pytest.approx(rate)
        burst = max(1.0, rate)
        held = burst if self.tokens is None else min(burst, self.tokens + max(0, at - self.at) * rate / 1000)
        if rate:
            held = max(held, -rate * DEBT_SECONDS)
        if overdraw:
            assert grant.moves == wanted
            floor = min(held, -rate * DEBT_SECONDS)
            expected = max(floor, held - wanted)
        else:
            granted = 0 if rate == 0 else min(wanted, max(0, int(held + 1e-6)))
            assert grant.moves == granted
            expected = held - granted
            self._check_delay(grant.delay, grant.moves, rate, held, burst)
        assert tokens == pytest.approx(expected, abs=1e-3)
        self.tokens, self.at = tokens, at

    def _check_delay(self, delay: float, moves: int, rate: float, held: float, burst: float) -> None:
        if rate == 0:
            assert delay == 3600
        elif moves:
            assert delay == pytest.approx(max(0.0, burst - held) / rate, abs=TOLERANCE)
        else:
            assert delay == pytest.approx(min(3600, (1 - held) / rate), abs=TOLERANCE)
            assert delay <= DEBT_SECONDS + 1 / rate + TOLERANCE

    @invariant()
    def the_debt_is_bounded(self) -> None:
        if self.tokens is not None:
            most = max(1_000.0, self.own)
            assert self.tokens >= -most * DEBT_SECONDS - 1e-3


def test_any_history_is_that_of_a_token_bucket(server: ScriptServer) -> None:
    class BudgetOfThis(Budget):
        def __init__(self) -> None:
            super().__init__(server)

    run_state_machine_as_test(BudgetOfThis, settings=settings(max_examples=30, stateful_step_count=20, deadline=None))


@pytest.mark.parametrize("field", ["rate", "until", "tokens", "at", "most"])
@pytest.mark.parametrize("value", ["", "many", "nan", "-nan"])
def test_what_is_no_number_in_redis_stops_no_moves(server: ScriptServer, field: str, value: str) -> None:
    server.submit("DEL", schema.MOVES)
    moves = MoveBucket(server.store)
    server.run(moves.set_rate(50, 50, server.run(server.time())))
    server.run(moves.take(10, 50))
    server.submit("HSET", schema.MOVES, field, value)
    assert server.run(moves.take(10, 50)).moves == 10


asks = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 300)), min_size=1, max_size=40)
"""Of several nodes: milliseconds after the last ask, and moves wanted."""


@settings(max_examples=40, deadline=None)
@given(asks, st.sampled_from((0.5, 3.0, 40.0, 200.0)), st.integers(0, 40), st.integers(0, 2_000))
def test_moves_of_all_nodes_are_spaced_by_the_rate(
    server: ScriptServer, asks: list[tuple[int, int]], rate: float, overdraft_at: int, overdraft: int
) -> None:
    """Whoever asks, and whenever: no two granted moves are due within less than 1 / rate, so no second has more of them
    than the rate, and what is overdrawn is waited for."""
    server.submit("DEL", schema.MOVES)
    moves = MoveBucket(server.store)
    first = server.run(server.time())
    shift, granted, owed = 0, 0, 0.0
    due: list[float] = []
    for i, (ms, wanted) in enumerate(asks):
        shift += ms
        if i:
            server.submit("HINCRBY", schema.MOVES, "at", -ms)
        if i and i == overdraft_at:
            server.run(moves.take(overdraft, rate, overdraw=True))
            owed = min(overdraft, rate * DEBT_SECONDS)
            due = []
        grant = server.run(moves.take(wanted, rate))
        now = (int(text(items(server.submit("HMGET", schema.MOVES, "at"))[0])) + shift - first) / 1000
        due += [now + grant.delay + n / rate for n in range(grant.moves)]
        granted += grant.moves
        assert granted <= rate * now + max(1.0, rate) + 1e-6
        if owed and grant.moves:
            assert granted + owed <= rate * now + max(1.0, rate) + rate * TOLERANCE + 1e-6
    assert all(late - early >= 1 / rate - 2 * TOLERANCE for early, late in itertools.pairwise(due))


@given(st.floats(0.1, 1e5), st.floats(0, 1), st.floats(0, 1e5), st.integers(0, 100), st.integers(1, 100))
def test_what_a_node_can_accept_is_between_a_tenth_and_its_accept_rate(
    accept_rate: float, idle: float, accepting: float, links: int, capacity: int
) -> None:
    spare = spare_accept_rate(accept_rate, idle, accepting, links, capacity)
    if links >= FULL_SHARE * capacity:
        assert spare == 0
    else:
        assert accept_rate * LEAST_SHARE <= spare <= accept_rate
        assert spare_accept_rate(accept_rate, idle / 2, accepting, links, capacity) <= spare
        assert spare_accept_rate(accept_rate, idle, accepting + 1, links, capacity) <= spare


@given(st.lists(st.floats(0, 1e5)), st.floats(0, 1e5))
def test_moves_leave_half_of_what_can_be_accepted_to_others(spare: list[float], most: float) -> None:
    rate = move_rate(spare, most)
    assert 0 <= rate <= most
    assert rate <= sum(spare) / 2
    assert rate in (most, sum(spare) / 2)
