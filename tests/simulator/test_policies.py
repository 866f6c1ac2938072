"""The formulas of other autoscalers, against the worked examples of their own documentation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Tokens, TokenSecret
from fairlead_operator.autoscaler.other_autoscalers import average_value_replicas, desired_replicas
from fairlead_operator.simulator.fleet.pod_table import PodTable
from fairlead_operator.simulator.policies.agones import AgonesBuffer, buffered
from fairlead_operator.simulator.policies.fairlead import FairleadPolicy
from fairlead_operator.simulator.policies.hpa import HorizontalPodAutoscaler
from fairlead_operator.simulator.policies.keda import KedaScaler
from fairlead_operator.simulator.policies.scaling_policy import FleetView, ScalingPolicy

SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    target_utilisation=50,
    replicas=Replicas(min=1, max=100),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)
TARGET = 500.0


def view(links: int, pods: int, now: int, *, starting: int = 0, readable: bool = True) -> FleetView:
    """`links` on each of `pods`, and further pods that have just been created."""
    table = PodTable(SPEC.accept_rate)
    table.add(np.zeros(pods, np.int64), 0)
    table.add(np.full(starting, now + 60, np.int64), 0)
    table.renew_readiness(now)
    table.links[:pods] = links
    table.report(now)
    return FleetView(table, pods + starting, readable, rolling_out=False, revision=0, now=now)


@pytest.mark.parametrize(
    ("current", "links", "expected"),
    [
        (3, 3000, 6),  # "if the current metric value is 200m, and the desired value is 100m, … doubled"
        (4, 1000, 2),  # "if the current value is instead 50m, you'll halve the number of replicas"
        (10, 5500, 10),  # a ratio of 1.1 is within the tolerance of 0.1
        (10, 5510, 12),
        (10, 4500, 10),
        (10, 4490, 9),
    ],
)
def test_hpa_by_its_documented_examples(current: int, links: int, expected: int) -> None:
    assert desired_replicas(current, links, current, 0, TARGET) == expected


def test_hpa_assumes_the_most_careful_of_pods_without_a_metric() -> None:
    assert desired_replicas(4, 3000, 2, 2, TARGET) == 6  # 3000 ÷ 500, the silent ones as empty: 1.5 × 4
    assert desired_replicas(4, 1500, 2, 2, TARGET) == 4  # 1.5 of two pods, but 0.75 of four: another direction
    assert desired_replicas(4, 200, 2, 2, TARGET) == 3  # the silent ones as filled to the target: 1200 ÷ 500
    assert desired_replicas(4, 0, 0, 4, TARGET) == 4  # no metric at all


def test_hpa_doubles_or_adds_four_within_fifteen_seconds() -> None:
    for pods, expected in ((2, 6), (10, 20)):
        hpa = HorizontalPodAutoscaler(SPEC)
        assert hpa.order(view(1000 * 50, pods, 0)).replicas == expected
        assert hpa.limited(100, expected, 15) == max(expected + 4, expected * 2)


def test_hpa_takes_the_greatest_recommendation_of_five_minutes_before_it_removes_pods() -> None:
    hpa = HorizontalPodAutoscaler(SPEC)
    assert hpa.order(view(500, 10, 0)).replicas == 10
    for now in range(15, 300, 15):
        assert hpa.order(view(100, 10, now)).replicas == 10
    assert hpa.order(view(100, 10, 300)).replicas == 2, "all that is allowed goes at once"


def test_hpa_does_not_scale_without_a_metric() -> None:
    hpa = HorizontalPodAutoscaler(SPEC)
    assert hpa.order(view(5000, 10, 0, readable=False)).replicas == 10


def test_keda_divides_the_sum_by_the_target() -> None:
    assert average_value_replicas(3, 3000, TARGET) == 6
    assert average_value_replicas(6, 3200, TARGET) == 6  # 533 a pod is within the tolerance of 500
    assert average_value_replicas(1, 0, TARGET) == 0
    assert KedaScaler(SPEC, 3000).order(view(1000, 3, 0, starting=3)).replicas == 6, "pods that start do not matter"


def test_keda_falls_back_once_the_failures_pass_the_threshold() -> None:
    """Its documentation's example: failureThreshold 3 and six replicas; `target metric value × fallback replicas`."""
    keda = KedaScaler(SPEC, 3000)
    orders = [keda.order(view(500, 3, 15 * i, readable=False)).replicas for i in range(4)]
    assert orders == [3, 3, 3, 6]
    assert keda.order(view(250, 6, 60)).replicas == 6, "the metric is back: the window of five minutes holds"


def test_agones_by_the_example_in_its_source() -> None:
    """8 of 10 are allocated and the buffer is 30 %: so many that 8 are 70 %."""
    assert buffered(8, 30) == 12
    assert buffered(0, 30) == 0
    agones = AgonesBuffer(SPEC)
    assert agones.order(view(500, 10, 0)).replicas == 10  # 5,000 links are half of 10 pods
    assert agones.order(view(100, 10, 30)).replicas == 2, "there is no window"
    assert agones.order(view(0, 10, 60)).replicas == SPEC.replicas.min
    assert agones.order(view(0, 10, 60, readable=False)).replicas == 10


@pytest.mark.parametrize("policy", [FairleadPolicy, HorizontalPodAutoscaler, AgonesBuffer])
def test_no_policy_leaves_the_bounds(policy: Callable[[LinkGatewaySpec], ScalingPolicy]) -> None:
    assert policy(SPEC).order(view(10**6, 90, 0)).replicas == 100


def test_fairlead_is_asked_with_what_the_nodes_have_reported() -> None:
    policy = FairleadPolicy(SPEC)
    assert policy.order(view(900, 10, 0, starting=2)).replicas == 18
    assert policy.decision is not None
    inputs = policy.decision.inputs
    assert (inputs.live, inputs.ready, inputs.fresh, inputs.pending) == (9000, 10, 10, 2)
    held = policy.order(view(10, 18, 10, readable=False))
    assert (held.replicas, held.victims) == (18, ())
    assert policy.decision.reason == "Redis cannot be read, so the number of pods is held"
