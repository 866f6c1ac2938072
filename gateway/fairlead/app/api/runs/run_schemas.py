"""The bodies of requests and answers about runs, as `schemas` has those about everything else."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from fairlead.app.api.identifiers import AgentId, CommandId, Method
from fairlead.fleet.runs.run_record import RunState, RunTargetState

LISTED = 10_000
"""Agents that a caller may list."""
CONCURRENCY = 10_000

Share = Annotated[float, Meta(gt=0, le=1)]
RunId = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z",
        description="a run's id (a UUID of version 7)",
    ),
]


class FailureCount(Struct, forbid_unknown_fields=True):
    """Abort once so many targets have failed."""

    failed: Annotated[int, Meta(ge=1, le=100_000)]


class FailureShare(Struct, forbid_unknown_fields=True):
    """Abort once more than this share of the targets that have ended has failed, as soon as `minimum` have ended."""

    share: Share
    minimum: Annotated[int, Meta(ge=1, le=100_000)] = 20


class NewRun(Struct, forbid_unknown_fields=True):
    """One method on many agents: those of `agents`, or all that match `selector`; expected is one of the two."""

    method: Method
    payload: Annotated[Raw, Meta(description="JSON for each agent, passed on unchanged.")] = field(
        default_factory=lambda: Raw(b"{}")
    )
    agents: Annotated[list[AgentId], Meta(min_length=1, max_length=LISTED)] | UnsetType = UNSET
    selector: (
        Annotated[
            str,
            Meta(min_length=1, max_length=1024, description="As of listAgents; `*` stands for all agents."),
        ]
        | UnsetType
    ) = UNSET
    concurrency: Annotated[
        int, Meta(ge=1, le=CONCURRENCY, description="Targets that are under way at once, at most.")
    ] = 500
    ramp: Annotated[
        int,
        Meta(
            ge=0,
            le=CONCURRENCY,
            description="Begin with so many targets at once, and have twice as many after each round, up to "
            "`concurrency`. 0 begins with `concurrency`.",
        ),
    ] = 0
    canary: Annotated[
        int,
        Meta(
            ge=0,
            le=CONCURRENCY,
            description="So many targets must have ended well before any other starts. One that fails aborts the run.",
        ),
    ] = 0
    abort_after: Annotated[FailureCount | None, Meta(description="Start no more targets once so many have failed.")] = (
        None
    )
    abort_above: Annotated[
        FailureShare | None, Meta(description="Start no more targets once a larger share has failed.")
    ] = None
    deadline: Annotated[
        float, Meta(ge=0.1, le=86400, description="Seconds from its start until a target must have ended.")
    ] = 60.0
    run_deadline: Annotated[
        float, Meta(ge=0.1, le=7 * 86400, description="Seconds from the request until all targets must have ended.")
    ] = 3600.0
    lane: Literal["interactive", "bulk"] = "bulk"
    on_offline: Annotated[
        Literal["fail", "skip"],
        Meta(description="Whether a target that is offline counts as a failure, or is passed over."),
    ] = "fail"
    retry: Annotated[
        Literal["never", "safe"],
        Meta(description="`safe` allows a second run at an agent if the outcome of the first is unknown."),
    ] = "never"
    dry_run: Annotated[bool, Meta(description="Run nothing, and answer with the agents that would be targets.")] = False


class AcceptedRun(Struct):
    """The run is stored. `undecided` counts agents that were left out because the selector asks for labels that were
    lost."""

    id: RunId
    targets: Annotated[int, Meta(ge=1)]
    undecided: Annotated[int, Meta(ge=0)]


class DryRun(Struct):
    """The agents that would be targets."""

    targets: Annotated[int, Meta(ge=0)]
    undecided: Annotated[int, Meta(ge=0)]
    agents: list[AgentId]


class RunOutcome(Struct):
    """Targets that ended in the same way with the same output. `digest` is that of the output; null if there was none,
    or too much to compare. `agents` and `commands` are the first few."""

    state: RunTargetState
    code: Annotated[str | None, Meta(description="The code of the error, if there was one.")]
    digest: str | None
    count: Annotated[int, Meta(ge=1)]
    agents: list[AgentId]
    commands: list[CommandId]


class RunPace(Struct):
    """How fast the run goes."""

    concurrency: int
    ramp: int
    canary: int
    abort_after: FailureCount | None
    abort_above: FailureShare | None


class Run(Struct):
    """The state of a run. Every target is in exactly one state, and `counts` add up to `targets`. A run that is done,
    aborted, cancelled or expired has ended once `ended` is set: until then some of its targets are under way."""

    id: RunId
    method: str
    subject: str
    selector: str | None
    state: RunState
    reason: Annotated[str | None, Meta(description="Why it was aborted, in words.")]
    created: str | None
    expires: str | None
    ended: str | None
    targets: Annotated[int, Meta(ge=1)]
    counts: dict[RunTargetState, int]
    outcomes: Annotated[list[RunOutcome], Meta(description="The largest groups, the largest one first.")]
    pace: RunPace
    node: Annotated[str | None, Meta(description="The node that drives it; null once it has ended.")]
