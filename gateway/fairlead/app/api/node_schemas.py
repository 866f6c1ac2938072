"""The answers about the nodes of the fleet and the methods of its agents. `schemas` says how they are used."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class NodeState(StrEnum):
    """What a node does. SERVING and DRAINING are what a living node says of itself; STOPPED has ended on purpose, and
    LOST has sent no heartbeat for 15 s and did not say why."""

    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


class FleetNode(Struct):
    """A node as it last reported itself. Counts are since the start of its process; times are RFC 3339."""

    name: str
    state: NodeState
    excluded_by: Annotated[
        str | None,
        Meta(description="Why it leaves new links to other nodes although it serves: `rollout`, `rebalance`; or null."),
    ]
    links: int
    capacity: int
    commands: Annotated[int, Meta(description="Commands that its agents run.")]
    cpu: Annotated[float, Meta(description="Share of the time for which its event loop was busy, from 0 to 1.")]
    memory: Annotated[float, Meta(description="Share of its memory limit, from 0 to 1; 0 without a limit.")]
    lag: Annotated[float, Meta(description="Delay of its event loop, in seconds.")]
    accepted: Annotated[int, Meta(description="Links that it has accepted.")]
    refused: Annotated[int, Meta(description="Links that it has refused because of its load.")]
    moved: Annotated[int, Meta(description="Links that a rebalance has made it move.")]
    since: Annotated[str, Meta(description="When it joined the fleet.")]
    heartbeat: Annotated[str, Meta(description="When it reported last.")]
    version: str


class NodeList(Struct):
    """All nodes, ordered by name."""

    nodes: list[FleetNode]


class LibraryMethod(Struct):
    """A built-in method of agents."""

    name: str
    text: Annotated[str, Meta(description="What it does.")]
    effect: Annotated[
        Literal["reads", "changes", "runs"],
        Meta(description="`reads`: it only looks. `changes`: it changes what it names. `runs`: it runs any program."),
    ]
    allowed: Annotated[bool, Meta(description="Whether a rule lets the caller run it, on some agents at least.")]
    input: Annotated[bool, Meta(description="Whether it takes input.")]
    output: Annotated[list[str], Meta(description="The kinds of its results before the end.")]
    arguments: Annotated[dict[str, Any], Meta(description="The JSON Schema of its payload.")]
    result: Annotated[dict[str, Any] | None, Meta(description="The JSON Schema of its result; null if there is none.")]
    row: Annotated[dict[str, Any] | None, Meta(description="The JSON Schema of each result of kind `row`, or null.")]


class MethodList(Struct):
    """The library of methods."""

    methods: list[LibraryMethod]
