"""A history in which somebody who can write to Redis has changed a number: it is refused, or soon without effect."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.autoscaler.decision import Action, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.document import UnusableHistory, decode_history
from fairlead_operator.autoscaler.history.link_history import HERD_SECONDS
from fairlead_operator.autoscaler.history.rebalance_history import PAUSE
from fairlead_operator.autoscaler.history.week_profile import QUARTERS, UNKNOWN
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rebalance import RebalanceState, plan_rebalance

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    replicas=Replicas(min=2, max=20),
    scaling=Scaling(failure_tolerance=0, step_down_seconds=60, week_profile=True),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)
WRITTEN = 1_763_942_400.0
"""Redis TIME in seconds when the document was written."""
NOW = int(WRITTEN * 1000)
CLOCK = 5000.0
PASS = 20.0
"""Seconds from one look to the next."""
LEFT = {
    "version": 1,
    "gateway": "u",
    "at": NOW,
    "clock": CLOCK,
    "history": {
        "began": 100.0,
        "links": {
            "observed_at": 5000.0, "live": 400, "growth": 1.5, "growing_since": 4990.0, "grew_at": 5000.0,
            "rejects": 0.5, "rejecting_since": 4990.0, "peaks": [[4800.0, 600], [5000.0, 400]],
            "outage": {"at": 4990.0, "links": 500},
            "given": [[4990.0, 30]],
            "reports": [{"pod": "p0", "at": 5000.0, "links": 400, "refused": 2, "left": 3}],
            "before_silence": [["p0", 400]],
        },
        "starts": {"began": True, "starting": [["p3", 4990.0]], "known": ["p0"], "durations": [12.5]},
        "wanted": [[4980.0, 2], [5000.0, 1]],
        "sizes": [[4990.0, 2], [5000.0, 1]],
        "removed_at": 4950.0,
        "short_of_pods": False,
        "signals": {"observed_at": 5000.0, "commands": 3.0, "cpu": 0.5, "memory": 0.5, "lag_ms": 2.0},
        "week": {
            "links": [400] * QUARTERS, "quarter": int(WRITTEN // 900), "whole": True, "highest": 400, "before": 400,
        },
        "zones": {"present": ["z0", "z1"], "replicas": 2, "failed": [["z2", 4990.0]]},
        "rebalance": {
            "pods": ["p0", "p1"], "uneven_since": 4970.0, "counters": [["p0", 3, 2]], "refusing_at": 4990.0,
            "run": {
                "began": 4900.0, "operation": "", "donors": ["p0"], "moved": 7, "round_began": 4980.0, "least": 300,
                "moved_in_round": 2, "idle_rounds": 1, "moved_in_vain": 3,
            },
            "ended": {"outcome": "NothingToMove", "at": 4900.0, "moved": 7, "message": "m", "operation": ""},
            "paused_until": 5300.0,
        },
    },
}  # fmt: skip


def numbers(node: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where the document has numbers."""
    if isinstance(node, int | float) and not isinstance(node, bool):
        yield path
    elif isinstance(node, dict):
        for key, inner in node.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(node, list):
        for i, inner in enumerate(node[:3]):
            yield from numbers(inner, (*path, i))


def planted(changes: dict[tuple[str | int, ...], float]) -> bytes:
    document = msgspec.json.decode(msgspec.json.encode(LEFT))
    for path, value in changes.items():
        node = document
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = value
    return msgspec.json.encode(document)


def fleet(at: float, *links: int) -> FleetObservation:
    pods = tuple(PodObservation(f"p{i}", age=1.0, links=count, capacity=1000) for i, count in enumerate(links))
    return FleetObservation(len(links), pods, at=at)


def looks(
    history: History, begin: float, spec: LinkGatewaySpec, seconds: float, *links: int
) -> Iterator[tuple[Action, RebalanceState]]:
    """What is decided on in each pass, of a fleet that stays as it is whatever is decided."""
    for i in range(1, int(seconds / PASS) + 1):
        clock = begin + i * PASS
        observed = fleet(WRITTEN + i * PASS, *links)
        decision = decide(observed, history, spec, clock)
        plan = plan_rebalance(observed, decision.history, spec, clock)
        history = plan.history
        yield decision.action, plan.state


NUMBERS = [path for path in numbers(LEFT) if path != ("version",)]
VALUES = [-(10**12), -(10**6), -1, 0, 1, 700, 5000, 5600, 10**4, 10**6, 10**9, 10**12]


def test_the_document_that_is_changed_is_a_history() -> None:
    document = decode_history(planted({}), "u", NOW)
    written = msgspec.json.decode(document.encode())
    assert set(numbers(written)) == {("version",), *NUMBERS}, "it has each number that a history can have"


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.dictionaries(st.sampled_from(NUMBERS), st.sampled_from(VALUES), min_size=1, max_size=3))
def test_no_number_stops_rebalances_or_removals_for_ever(changes: dict[tuple[str | int, ...], float]) -> None:
    try:
        document = decode_history(planted(changes), "u", NOW)
    except UnusableHistory:
        return
    history = document.history.resume(document.gap(NOW), 20_000)
    needed = msgspec.structs.replace(SPEC, replicas=Replicas(min=3, max=20))
    states = {state for _, state in looks(history, document.clock, needed, 2 * PAUSE, 400, 10, 10)}
    assert RebalanceState.RUNNING in states
    actions = {action for action, _ in looks(history, document.clock, SPEC, HERD_SECONDS + 600, 100, 100, 100, 100)}
    assert Action.DOWN in actions


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("history", "rebalance", "paused_until"), CLOCK + PAUSE + 1, "a pause that lasts too long"),
        (("history", "rebalance", "refusing_at"), CLOCK + 1, "a time after"),
        (("history", "rebalance", "run", "idle_rounds"), -1, "a negative number"),
        (("history", "links", "reports", 0, "left"), -1, "a negative number"),
        (("history", "links", "rejects"), -1.0, "a negative number"),
        (("history", "week", "links", 5), UNKNOWN - 1, "a negative number"),
        (("at",), NOW + 61_000, "it was written in the future"),
    ],
)
def test_number_that_no_operator_writes_is_refused(path: tuple[str | int, ...], value: float, why: str) -> None:
    with pytest.raises(UnusableHistory, match=why):
        decode_history(planted({path: value}), "u", NOW)


def test_message_that_no_operator_writes_is_refused() -> None:
    ended = ("history", "rebalance", "ended", "message")
    with pytest.raises(UnusableHistory, match="not a history"):
        decode_history(planted({ended: "x" * 2000}), "u", NOW)  # type: ignore[dict-item]


def test_profile_of_the_week_is_cut_to_what_the_fleet_may_hold_and_goes_on_learning() -> None:
    changes: dict[tuple[str | int, ...], float] = {("history", "week", "links", i): 10**12 for i in range(QUARTERS)}
    document = decode_history(planted(changes | {("history", "week", "quarter"): 10**9}), "u", NOW)
    week = document.history.resume(0.0, 20_000).week
    assert max(week.links) == 20_000
    for i in range(1, 4):
        week = week.observe(400, WRITTEN + i * 900)
    quarter = int(WRITTEN // 900) + 2
    assert week.links[quarter % QUARTERS] == 10_200, "the newest week counts half"
