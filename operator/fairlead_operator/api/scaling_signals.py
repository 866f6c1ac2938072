"""The part of a LinkGateway's spec about what else than links asks for pods. Pure. Each signal has a rule of the same
purpose in `autoscaler.rules`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead_operator.api.field_types import ApiStruct


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
