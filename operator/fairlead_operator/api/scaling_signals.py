"""The part of a LinkGateway's spec about what else than links asks for pods. Pure. Each signal has a rule of the same
purpose in `autoscaler.rules`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead_operator.api.field_types import ApiStruct

PROMETHEUS_URL = (
    r"^https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?(/[A-Za-z0-9_~:@-][A-Za-z0-9_.~:@-]*)*/?$"
)
"""Without a user and a password, which everybody who may read a LinkGateway would see. Without a query, a fragment,
percent signs and segments that begin with a dot, by which the request would go to another path than the one that the
policy has allowed."""


class PrometheusSignal(ApiStruct, frozen=True, kw_only=True):
    """A number that a Prometheus knows. A query that fails scales nothing."""

    url: Annotated[
        str,
        Meta(
            pattern=PROMETHEUS_URL,
            max_length=500,
            description="Its address, such as http://prometheus.monitoring:9090. The operator's policy must allow it.",
        ),
    ]
    query: Annotated[
        str, Meta(min_length=1, max_length=4000, description="PromQL that returns one number, such as sum(queue_jobs).")
    ]
    target_per_pod: Annotated[float, Meta(ge=0.001, description="How much of that number there may be for each pod.")]
    timeout_seconds: Annotated[int, Meta(ge=1, le=8, description="Time for the answer.")] = 4


class ScalingSignals(ApiStruct, frozen=True, kw_only=True):
    """What else than links asks for pods. Nothing by default; the greatest of all numbers wins."""

    commands_per_pod: (
        Annotated[int, Meta(ge=1, le=1_000_000, description="Commands that may be in flight on each pod.")] | None
    ) = None
    cpu_percent: (
        Annotated[
            int,
            Meta(ge=10, le=95, description="Percentage of the time for which the event loop of a pod may be busy."),
        ]
        | None
    ) = None
    memory_percent: (
        Annotated[int, Meta(ge=10, le=95, description="Percentage of its memory limit that a pod may use.")] | None
    ) = None
    loop_lag_millis: (
        Annotated[
            float,
            Meta(ge=1, le=10_000, description="Milliseconds by which the event loops may run late, in the mean."),
        ]
        | None
    ) = None
    prometheus: PrometheusSignal | None = None
