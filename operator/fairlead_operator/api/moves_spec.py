"""The parts of a LinkGateway's spec that say how agents move from one pod to another. Pure; part of `gateway_spec`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead_operator.api.field_types import ApiStruct


class Moves(ApiStruct, frozen=True, kw_only=True):
    """How fast agents move to other pods, in drains, rollouts and evictions together."""

    max_per_second: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Agents that move per second at most, in the whole fleet. Usually fewer do: half of what the "
            "receiving pods can accept.",
        ),
    ] = 200


class Drain(ApiStruct, frozen=True, kw_only=True):
    """How a pod sends its agents to other pods. It is part of the pod template, so a change replaces all pods once."""

    max_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=3600,
            description="The longest that the drain of a pod may take. A full pod at the slowest rate that the budget "
            "of moves has for it, and a minute for commands, must fit into it.",
        ),
    ] = 300
    shutdown_delay_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=3600,
            description="A terminating pod serves all its ports for at least this long: the time that endpoints, "
            "kube-proxy and the ingress controller need to stop sending it anything.",
        ),
    ] = 10


class Rebalance(ApiStruct, frozen=True, kw_only=True):
    """When links are moved from full pods to others, such as new ones. docs/operator.md describes how."""

    enabled: bool = True
    threshold_percent: Annotated[
        int,
        Meta(
            ge=2,
            le=1000,
            description="Links are moved when the fullest pod stays above the mean by more than this percentage, until "
            "it is above by half of it at most.",
        ),
    ] = 10
    min_difference: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Links by which the fullest pod must be above the mean as well.")
    ] = 10
