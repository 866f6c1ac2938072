"""Growth and refused links: how far ahead they are extrapolated, and how many pods they may add at once."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from fairlead_operator.api.gateway_spec import Replicas, Scaling
from fairlead_operator.autoscaler.decision import Action, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation

from support.decisions import PERIOD, SPEC, asks, fleet


def test_growth_adds_pods_before_its_links_arrive() -> None:
    history = decide(fleet(500, 500), History(), SPEC, 0.0).history
    still = decide(fleet(500, 500), history, SPEC, PERIOD)
    grown = decide(fleet(700, 700), history, SPEC, PERIOD)
    assert grown.inputs.growth == pytest.approx(40 * (1 - math.exp(-PERIOD / 30)))
    assert asks(grown, "utilisation") == math.ceil(1400 / 700), "it may have been a burst"
    again = decide(fleet(900, 900), grown.history, SPEC, 2 * PERIOD)
    assert again.inputs.growing_seconds == PERIOD
    assert asks(again, "utilisation") == math.ceil((1800 + again.inputs.growth * PERIOD / 2) / 700) > 1800 / 700
    assert still.inputs.growth == 0


@pytest.mark.parametrize("phase", [0.0, 2.5, 4.9])
@pytest.mark.parametrize("lead", [15, 30])
def test_agents_that_connect_all_at_once_to_a_new_fleet_require_no_second_pod(phase: float, lead: int) -> None:
    """2,000 agents come at 100 a second. The one pod takes 2,800 at its target, and reports every 5 s."""
    scaling = Scaling(failure_tolerance=0, lead_seconds=lead)
    spec = msgspec.structs.replace(SPEC, capacity=4000, replicas=Replicas(min=1, max=20), scaling=scaling)
    history, wanted = History(), set()
    for now in range(0, 120, int(PERIOD)):
        reported = now - (now - phase) % 5.0
        links = round(100 * min(max(reported, 0.0), 20.0))
        pod = PodObservation("p0", age=now - reported, links=links, capacity=4000)
        decision = decide(FleetObservation(1, (pod,)), history, spec, float(now))
        history = decision.history
        wanted.add(decision.target.replicas)
    assert decision.inputs.links == 2000
    assert wanted == {1}


def test_growth_that_lasts_is_extrapolated_over_the_whole_lead_time_and_one_that_ends_no_more() -> None:
    history, now = History(), 0.0
    for links in range(0, 1000, 100):
        decision = decide(fleet(links, links), history, SPEC, now)
        history, now = decision.history, now + PERIOD
    growing = decision.inputs
    assert growing.growing_seconds >= 2 * growing.lead_seconds
    assert asks(decision, "utilisation") == math.ceil((growing.links + growing.growth * growing.lead_seconds) / 700)
    for _ in range(2):
        decision = decide(fleet(900, 900), history, SPEC, now)
        history, now = decision.history, now + PERIOD
    assert decision.inputs.growth > 0
    assert decision.inputs.growing_seconds == 0
    assert asks(decision, "utilisation") == math.ceil(1800 / 700)


def test_lead_time_is_measured_from_the_starts_of_pods() -> None:
    here = fleet(10, 10).pods
    history, leads = History(), []
    for i in range(8):
        new = () if i < 2 else (PodObservation("new", ready=i >= 5),)
        decision = decide(FleetObservation(3, (*here, *new)), history, SPEC, i * PERIOD)
        history = decision.history
        leads.append(decision.inputs.lead_seconds)
    assert leads == [30] * 5 + [40] * 3  # seen at 20 s, ready at 50 s, and 10 s
    ill = decide(FleetObservation(3, (*here, PodObservation("new", ready=False))), history, SPEC, 80.0)
    well = decide(FleetObservation(3, (*here, PodObservation("new"))), ill.history, SPEC, 400.0)
    assert well.inputs.lead_seconds == 40  # it had been ready before
    late = decide(FleetObservation(4, (*here, PodObservation("slow", ready=False))), well.history, SPEC, 410.0)
    there = decide(FleetObservation(4, (*here, PodObservation("slow"))), late.history, SPEC, 4010.0)
    assert there.inputs.lead_seconds == 300


def test_refused_links_require_pods_and_then_lift_the_step_limit() -> None:
    def full(refused: int) -> FleetObservation:
        return FleetObservation(
            2, tuple(PodObservation(f"p{i}", age=1.0, links=1000, capacity=1000, refused=refused) for i in range(2))
        )

    spec = msgspec.structs.replace(SPEC, replicas=Replicas(min=2, max=100))
    history = decide(full(0), History(), spec, 0.0).history
    replicas = []
    for i in range(1, 6):
        decision = decide(full(i * 10_000), history, spec, i * PERIOD)
        history = decision.history
        replicas.append(decision.replicas)
        assert decision.inputs.rejects > 0
    # The Deployment was never scaled here, so the limit stays at that of two pods.
    assert replicas == [6] * 5
    assert history.links.rejecting_since == PERIOD


def test_scale_down_waits_while_links_are_refused() -> None:
    def busy(refused: int) -> FleetObservation:
        return FleetObservation(
            4, tuple(PodObservation(f"p{i}", age=1.0, links=50, capacity=1000, refused=refused) for i in range(4))
        )

    history = History()
    for i in range(70):
        decision = decide(busy(i), history, SPEC, i * PERIOD)
        history = decision.history
        assert decision.replicas == 4
    assert decision.reason == "2 pods would suffice, but links are being refused"
    calm = decide(busy(69), history, SPEC, 70 * PERIOD)
    assert calm.action is Action.DOWN


def test_negative_growth_does_not_reduce_the_required_pods() -> None:
    history = History()
    for i in range(30):
        decision = decide(fleet(3000 - 100 * i, 3000 - 100 * i), history, SPEC, i * PERIOD)
        history = decision.history
    assert decision.inputs.growth < -15
    assert asks(decision, "utilisation") == math.ceil(decision.inputs.links / 700)


def test_scale_up_at_most_doubles_within_a_minute() -> None:
    many = tuple(PodObservation(f"p{i}", age=1.0, links=950, capacity=1000) for i in range(10))
    first = decide(FleetObservation(10, many), History(), SPEC, 0.0)
    assert (first.replicas, first.limited) == (14, False)
    # More links at once: the fleet may double within a minute, counted from its least size of that minute.
    spec = msgspec.structs.replace(SPEC, replicas=Replicas(min=2, max=500))
    more = tuple(PodObservation(f"p{i}", age=1.0, links=5000, capacity=1000) for i in range(14))
    without_growth = replace(first.history, links=replace(first.history.links, growth=0.0))
    again = decide(FleetObservation(14, more[:14]), without_growth, spec, PERIOD)
    assert again.replicas == 28  # a need of twice what is ready lifts the limit: it counts from now
    fuller = many + tuple(PodObservation(f"q{i}", age=1.0, links=1150, capacity=1000) for i in range(4))
    calm = decide(FleetObservation(14, fuller), first.history, spec, PERIOD)
    assert (calm.target.replicas, calm.replicas) == (21, 20)  # from 10 a minute ago
