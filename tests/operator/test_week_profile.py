"""The profile of a week: what it learns, what it expects, and pods that are there before a rise that each week has."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.autoscaler.decision import decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.document import HistoryDocument, decode_history
from fairlead_operator.autoscaler.history.week_profile import QUARTER_SECONDS, QUARTERS, UNKNOWN, WeekProfile
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.removal_hold import Hold

WEEK = QUARTERS * QUARTER_SECONDS
BEGIN = 1_763_942_400.0  # a Monday, 00:00 UTC
SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    replicas=Replicas(min=1, max=50),
    scaling=Scaling(failure_tolerance=0, week_profile=True),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)


def office(at: float) -> int:
    """The links of a fleet whose agents work from 8 to 17 o'clock."""
    return 9000 if 8 <= at % 86_400 / 3600 < 17 else 1000


def learned(weeks: int = 2, until: float = 0.0) -> WeekProfile:
    """What is known after whole weeks and `until` seconds more, with a look every five minutes."""
    profile = WeekProfile()
    for i in range(math.ceil((weeks * WEEK + until) / 300)):
        profile = profile.observe(office(BEGIN + i * 300), BEGIN + i * 300)
    return profile


def fleet(links: int, pods: int, at: float) -> FleetObservation:
    share = [links // pods + (i < links % pods) for i in range(pods)]
    reports = tuple(PodObservation(f"p{i}", age=1.0, links=count, capacity=1000) for i, count in enumerate(share))
    return FleetObservation(pods, reports, at=at)


def test_a_rise_of_each_week_is_expected_before_it_begins() -> None:
    profile = learned(until=8 * 3600)  # a Monday, until 7:55
    eight = BEGIN + 2 * WEEK + 8 * 3600
    assert profile.expected(eight - 60, 30) == 1000
    assert profile.expected(eight - 60, 90) == 9000
    assert profile.expected(eight - 3600, 7200) == 9000


def test_a_quiet_day_is_expected_to_stay_as_quiet() -> None:
    profile = learned(until=8 * 3600 - 900)
    eight = BEGIN + 2 * WEEK + 8 * 3600
    for i in range(3):
        profile = profile.observe(100, eight - 900 + i * 300)
    holiday = replace(profile, before=100)
    assert profile.expected(eight - 60, 90) == 9000  # the quarter hour before was as usual
    assert holiday.expected(eight - 60, 90) == 900


def test_nothing_is_expected_of_a_week_that_was_not_seen() -> None:
    assert WeekProfile().expected(BEGIN, 3600) == 0
    some = WeekProfile().observe(5, BEGIN).observe(7, BEGIN + 900).observe(9, BEGIN + 1800)
    assert some.links.count(UNKNOWN) == QUARTERS - 1, "the first quarter hour was not seen from its beginning"
    assert some.expected(BEGIN + WEEK + 900, 0) == 7
    assert some.expected(BEGIN + 86_400, 0) == 0


def test_old_weeks_are_forgotten() -> None:
    profile = learned(weeks=1)
    assert max(profile.links) == 9000
    for i in range(6 * QUARTERS):
        profile = profile.observe(1000, BEGIN + WEEK + i * QUARTER_SECONDS)
    assert max(profile.links) <= 1000 + 8000 / 2**5


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(-1e4, 1e6)), max_size=60), st.floats(0, 1e6))
def test_profile_is_bounded_and_expects_no_more_than_was_there(looks: list[tuple[int, float]], ahead: float) -> None:
    profile, at = WeekProfile(), BEGIN
    for links, seconds in looks:
        at += seconds
        profile = profile.observe(links, at)
        assert len(profile.links) in (0, QUARTERS)
        assert 0 <= profile.expected(at, ahead) <= max((links for links, _ in looks), default=0)


@given(st.integers(0, 20_000), st.integers(1, 20), st.floats(0, WEEK))
def test_the_profile_never_takes_a_pod_away(links: int, pods: int, second: float) -> None:
    at = BEGIN + 2 * WEEK + second
    known = replace(History(), week=learned(1))
    without = msgspec.structs.replace(SPEC, scaling=Scaling(failure_tolerance=0))
    more = decide(fleet(links, pods, at), known, SPEC, 0.0)
    plain = decide(fleet(links, pods, at), known, without, 0.0)
    assert more.required >= plain.required
    assert more.replicas >= plain.replicas


def test_pods_are_there_before_the_rise_and_the_decision_explains_it() -> None:
    history = replace(History(), week=learned(until=7.75 * 3600))
    eight = BEGIN + 2 * WEEK + 8 * 3600
    early = decide(fleet(1000, 2, eight - 600), history, SPEC, 0.0)
    assert early.replicas == 2
    before = decide(fleet(1000, 2, eight - 20), early.history, SPEC, 580.0)
    assert (before.target.replicas, before.target.winner) == (13, "weekProfile")
    assert before.inputs.expected == 9000
    assert before.reason.endswith("(9000 links are expected)")
    assert "if scaling.weekProfile is set" in before.reason


def test_a_pod_that_is_needed_again_soon_is_not_removed() -> None:
    eight = BEGIN + 2 * WEEK + 8 * 3600
    history = replace(History(), week=learned(until=7.5 * 3600))
    for i in range(120):
        at = eight - 1500 + i * 10
        decision = decide(fleet(1000, 13, at), history, SPEC, i * 10.0)
        history = replace(decision.history, removed_at=None)
        if at >= eight - 600:
            assert decision.hold is not None
            assert decision.hold.by in (Hold.EXPECTED_DEMAND, "weekProfile", Hold.WATCHED_BRIEFLY)
    assert decision.hold is not None
    assert decision.hold.by == Hold.EXPECTED_DEMAND


def test_profile_is_handed_to_the_next_leader_and_is_small() -> None:
    history = replace(History(), week=learned())
    document = HistoryDocument(gateway="u", at=0, clock=0.0, history=history)
    assert len(document.encode()) - len(replace_week(document).encode()) < 6000
    found = decode_history(document.encode(), "u", 0).history
    assert found.week == found.resume(3600.0, 9000).week == history.week


def replace_week(document: HistoryDocument) -> HistoryDocument:
    return msgspec.structs.replace(document, history=replace(document.history, week=WeekProfile()))


def test_without_the_setting_nothing_is_learned() -> None:
    plain = msgspec.structs.replace(SPEC, scaling=Scaling())
    history = History()
    for i in range(400):
        history = decide(fleet(1000, 2, BEGIN + i * 900), history, plain, i * 900.0).history
    assert history.week == WeekProfile()
    learning = decide(fleet(1000, 2, BEGIN), history, SPEC, 400 * 900.0).history
    assert learning.week.quarter == pytest.approx(BEGIN / 900)
