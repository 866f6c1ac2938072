"""The history that one leader leaves to the next: the document, what of it is believed, and two leaders in a row."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fleet import schema
from fairlead.store.reply import octets
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.autoscaler.decision import decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.document import MOST_BYTES, HistoryDocument, UnusableHistory, decode_history
from fairlead_operator.autoscaler.history.fleet_history import GAP_MOST
from fairlead_operator.autoscaler.history.rebalance_history import EndedRebalance, RebalanceHistory, RebalanceOutcome
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rebalance import plan_rebalance
from fairlead_operator.inputs.fleet_redis import SCALING_HISTORY_MS
from fairlead_operator.kube.objects import Object

from support.operator_namespace import OperatorNamespace

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    replicas=Replicas(min=1, max=50),
    scaling=Scaling(window_seconds=60, step_down_seconds=30),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)
PERIOD = 10.0
MOST = 50_000
"""Links for which the spec has room."""
NOW = 1_700_000_012_000
"""Redis TIME in ms, 12 s after the document below was written."""
VERSION_1 = b"""{"version": 1, "gateway": "u", "at": 1700000000000, "clock": 500.0, "history": {
  "began": 100.0,
  "links": {"observed_at": 500.0, "live": 40, "growth": 1.5, "rejects": 0.0, "rejecting_since": null,
            "peaks": [[480.0, 60], [500.0, 40]], "reports": [{"pod": "a", "at": 500.0, "links": 40, "refused": 2}],
            "before_silence": [["a", 40]]},
  "starts": {"began": true, "starting": [["b", 490.0]], "known": ["a"], "durations": [12.5]},
  "wanted": [[480.0, 2], [500.0, 1]], "sizes": [[490.0, 2], [500.0, 1]], "removed_at": 450.0, "short_of_pods": false,
  "rebalance": {"pods": ["a"], "uneven_since": 470.0, "counters": [["a", 3]], "run": null,
                "ended": {"outcome": "Even", "at": 400.0, "moved": 7, "message": "even", "operation": ""},
                "paused_until": 1000.0}}}"""
"""What the first version of the document looks like: the operator that is upgraded left it."""


def fleet(*links: int) -> FleetObservation:
    pods = tuple(PodObservation(f"p{i}", age=1.0, links=count, capacity=1000) for i, count in enumerate(links))
    return FleetObservation(len(links), pods)


fleets = st.lists(st.integers(0, 1500), min_size=4, max_size=4).map(lambda links: fleet(*links))


def lived(looks: list[FleetObservation]) -> History:
    """The history after these observations, one in each period from PERIOD on."""
    history = History()
    for i, one in enumerate(looks, 1):
        history = decide(one, history, SPEC, i * PERIOD).history
        history = plan_rebalance(one, history, SPEC, i * PERIOD).history
    return history


def handed_on(history: History, clock: float) -> HistoryDocument:
    return decode_history(HistoryDocument(gateway="u", at=0, clock=clock, history=history).encode(), "u", 10_000)


@settings(deadline=None, max_examples=50)
@given(st.lists(fleets, min_size=1, max_size=20), st.lists(fleets, min_size=1, max_size=10))
def test_next_leader_decides_as_the_last_one_would_have(
    before: list[FleetObservation], after: list[FleetObservation]
) -> None:
    last = lived(before)
    document = handed_on(last, len(before) * PERIOD)
    assert document.history == last
    assert len(document.encode()) < 5000
    following = document.history.resume(document.gap(10_000), MOST)
    for i, one in enumerate(after, len(before) + 1):
        expected, found = (decide(one, history, SPEC, i * PERIOD) for history in (last, following))
        assert found == expected
        last, following = expected.history, found.history


def test_start_that_fell_into_a_gap_is_not_measured() -> None:
    here = fleet(10, 10)
    soon = PodObservation("soon", ready=False)
    history = lived([here, FleetObservation(3, (*here.pods, soon))]).resume(15.0, MOST)
    there = FleetObservation(4, (*here.pods, replace(soon, ready=True), PodObservation("new")))
    starts = decide(there, history, SPEC, 40.0).history.starts
    assert starts.durations == (20.0,)  # of the pod that the last leader saw at 20 s
    assert starts.known == {"p0", "p1", "soon", "new"}


def test_after_a_long_gap_the_fleet_is_watched_anew_and_pauses_still_hold() -> None:
    ended = EndedRebalance(RebalanceOutcome.LOAD_BALANCER_PINS, 90.0, 5, "they came back")
    before = replace(
        lived([fleet(900, 900, 900)] * 10),
        removed_at=95.0,
        starts=replace(History().starts, durations=(40.0,)),
        rebalance=RebalanceHistory(ended=ended, paused_until=700.0),
    )
    clock = 100.0 + GAP_MOST + 1
    history = before.resume(GAP_MOST + 1, MOST)
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(window_seconds=60, step_down_seconds=300))
    first = decide(fleet(10, 10, 10), history, spec, clock)
    assert first.inputs.links == 30  # what was lost meanwhile is not known
    assert first.inputs.lead_seconds == 50  # measured
    assert "last removal" in first.reason
    assert "watched" in decide(fleet(10, 10, 10), history, SPEC, clock).reason
    assert plan_rebalance(fleet(500, 10, 10), first.history, SPEC, clock).history.rebalance.paused_until == 700.0


def test_document_of_version_1_is_read() -> None:
    document = decode_history(VERSION_1, "u", NOW)
    assert document.gap(NOW) == 12
    history = document.history
    assert (history.began, history.removed_at, history.rebalance.paused_until) == (100.0, 450.0, 1000.0)
    assert history.links.links == 60
    assert history.starts.duration == 12.5
    assert msgspec.json.decode(document.encode()) == msgspec.json.decode(VERSION_1) | {
        "history": msgspec.json.decode(msgspec.json.encode(history))
    }


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "it is not a history"),
        (b"\x00\xff nonsense", "it is not a history"),
        (b"[]", "it is not a history"),
        (VERSION_1.replace(b'"version": 1', b'"version": 2'), "it is of version 2: expected version 1"),
        (VERSION_1.replace(b'"u"', b'"other"'), "it is of another LinkGateway"),
        (VERSION_1.replace(b'"live": 40', b'"live": "many"'), "it is not a history"),
        (VERSION_1.replace(b'"growth": 1.5', b'"growth": NaN'), "it is not a history"),
        (VERSION_1.replace(b'"growth": 1.5', b'"growth": 1e300'), "a number above"),
        (VERSION_1.replace(b'"live": 40', b'"live": ' + b"9" * 30), "(a number above|not a history)"),
        (VERSION_1.replace(b"[[480.0, 2]", b"[[501.0, 2]"), "a time after"),
        (VERSION_1.replace(b'"removed_at": 450.0', b'"removed_at": 1e9'), "a time after"),
        (VERSION_1.replace(b'"at": 1700000000000', b'"at": 1' + b"0" * 400), "a number above"),
        (VERSION_1.replace(b'"began": 100.0', b'"week": {"links": [1]}'), "its profile of a week has not 672"),
        (VERSION_1.replace(b"[12.5]", b"[-12.5]"), "a negative number"),
        (b" " * (MOST_BYTES + 1), "it has more than"),
    ],
    ids=lambda value: value[:24].decode(errors="replace") if isinstance(value, bytes) else str(value),
)
def test_document_that_no_operator_has_written_is_refused(document: bytes, why: str) -> None:
    with pytest.raises(UnusableHistory, match=why):
        decode_history(document, "u", NOW)


def test_history_of_a_great_fleet_fits_into_its_document() -> None:
    pods = tuple(
        PodObservation(f"agents-of-europe-6d5f7c9b8-{i:05}", age=1.0, links=9999, capacity=10_000) for i in range(2000)
    )
    history = History()
    for i in range(700):
        some = FleetObservation(2000, pods[: 2000 - 2 * i])
        history = decide(some, history, SPEC, i + math.pi).history
    assert len(HistoryDocument(gateway="u" * 36, at=0, clock=700 + math.pi, history=history).encode()) < MOST_BYTES / 2


# -- against a real API server and Redis ----------------------------------------------------------------


async def kept(namespace: OperatorNamespace, gateway: Object) -> HistoryDocument:
    found = octets(await namespace.store.submit("GET", schema.SCALING_HISTORY))
    return decode_history(found, gateway["metadata"]["uid"], time.time_ns() // 1_000_000)


async def test_second_leader_continues_growth_starts_and_pause(namespace: OperatorNamespace) -> None:
    body = await namespace.gateway(scaling={"windowSeconds": 60, "stepDownSeconds": 300, "failureTolerance": 0})
    first = namespace.reconciler(body)
    await namespace.reconcile(first)
    names = await namespace.run_pods(2)
    for links in (100, 200, 300):
        for name in names:
            await namespace.beat(name, links)
        before = await namespace.reconcile(first)
    growth = before["decision"]["inputs"]["growth"]
    assert growth > 5
    await first.aclose()

    namespace.now = 5_000_000.0  # the clock of another machine
    second = namespace.reconciler(body)
    for name in names:
        await namespace.beat(name, 300)
    status = await namespace.reconcile(second)
    inputs = status["decision"]["inputs"]
    assert 0 < inputs["growth"] <= growth, "it falls with the time between both passes, which may be short"
    assert inputs["leadSeconds"] == before["decision"]["inputs"]["leadSeconds"]
    document = await kept(namespace, body)
    assert len(document.history.sizes) > 1, "the sizes that the first leader saw are still there"
    assert 0 < int(await namespace.store.submit("PTTL", schema.SCALING_HISTORY)) <= SCALING_HISTORY_MS  # type: ignore[arg-type]


@pytest.mark.parametrize("left", [b"nonsense", b'{"version": 9}', None], ids=["nonsense", "version", "another type"])
async def test_history_that_cannot_be_read_is_ignored_with_a_sentence(
    namespace: OperatorNamespace, caplog: pytest.LogCaptureFixture, left: bytes | None
) -> None:
    body = await namespace.gateway()
    if left is None:
        await namespace.store.submit("HSET", schema.SCALING_HISTORY, "a", "b")
    else:
        await namespace.store.submit("SET", schema.SCALING_HISTORY, left)
    with caplog.at_level(logging.WARNING):
        status = await namespace.reconcile(namespace.reconciler(body))
    assert status["decision"]["action"] == "Up"
    assert "the last leader's history is ignored" in caplog.text
    assert left is not None or schema.SCALING_HISTORY in caplog.text
    assert await kept(namespace, body)
