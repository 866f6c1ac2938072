"""The part of a LinkGateway's spec about signals other than links that require pods. Pure. Each signal has a rule in
`autoscaler.rules`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead_operator.api.field_types import ApiStruct

PROMETHEUS_URL = (
    r"^https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?(/[A-Za-z0-9_~:@-][A-Za-z0-9_.~:@-]*)*/?$"
)
"""The URL must have no user and password, which everyone who may read a LinkGateway would see. It must have no query,
fragment, percent sign or segment that begins with a dot, with which the request could go to another path than the one
that the policy allows."""


class PrometheusSignal(ApiStruct, frozen=True, kw_only=True):
    """A number from Prometheus. While the query fails, it adds no pod, and no pod is removed."""

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
    """Signals other than links that require pods; none by default. The greatest of all required numbers wins."""

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
