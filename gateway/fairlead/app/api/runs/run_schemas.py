"""The bodies of requests and answers about runs, as `schemas` has those about everything else."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from fairlead.app.api.identifiers import AgentId, CommandId, Digest, Method, Signature
from fairlead.app.api.schemas import Queue
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


class Batches(Struct, forbid_unknown_fields=True):
    """Targets that start together: none of a batch starts before all of the batches before it have ended. With `by`,
    agents with different values of that label or fact are in different batches, in the order of the values; those
    without it are last. A batch has at most `size` targets, or a `share` of all, or of those with the same value."""

    by: Annotated[str, Meta(min_length=1, max_length=80)] | None = None
    size: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    share: Share | None = None


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
    batches: Batches | None = None
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
        Literal["fail", "skip"] | Queue,
        Meta(
            description="Whether a target that is offline counts as a failure, is passed over, or waits for its agent. "
            "Then its agent need not be linked at all, and it holds no place among those of `concurrency`."
        ),
    ] = "fail"
    retry: Annotated[
        Literal["never", "safe"],
        Meta(description="`safe` allows a second run at an agent if the outcome of the first is unknown."),
    ] = "never"
    spread: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="Seconds over which the starts are spread evenly; each agent has the same place in every run.",
        ),
    ] = 0.0
    late: Annotated[
        bool,
        Meta(
            description="Whether agents that match the selector join when they connect, until `run_deadline`. Then "
            "those that are not linked now are no targets, and there may be none at first."
        ),
    ] = False
    fail_on_exit: Annotated[
        bool,
        Meta(
            description="Whether a target counts as failed if its program exited with a code other than 0, or by a "
            "signal. Its command ends as `ok` all the same."
        ),
    ] = False
    content: Annotated[
        Digest | UnsetType,
        Meta(
            description="The digest of a stored content, which each agent gets as its input if it asks for it, as "
            "`script` does."
        ),
    ] = UNSET
    unchecked: Annotated[
        bool | UnsetType,
        Meta(
            description="Whether a payload that does not fit a built-in method is passed on all the same, for agents "
            "that have a method of their own under its name."
        ),
    ] = UNSET
    dry_run: Annotated[bool, Meta(description="Run nothing, and answer with the agents that would be targets.")] = False
    id: Annotated[
        RunId | UnsetType,
        Meta(
            description="The id that the signature covers; only beside a signature, and in place of an Idempotency-Key."
        ),
    ] = UNSET
    signature: Annotated[
        Signature | UnsetType,
        Meta(
            description="What the agents verify, in base64, for a run of a list of agents; docs/protocol.md describes "
            "it."
        ),
    ] = UNSET


class RetriedRun(Struct, forbid_unknown_fields=True):
    """Which targets of a run are tried again: those that ended in one of these states."""

    states: Annotated[
        list[Literal["ok", "failed", "timeout", "offline", "expired", "cancelled", "skipped", "not_started"]],
        Meta(min_length=1, max_length=7),
    ] = field(default_factory=lambda: ["failed", "timeout", "offline", "expired"])


class AcceptedRun(Struct):
    """The run is stored. `undecided` counts agents that were left out because the selector asks for labels that were
    lost."""

    id: RunId
    targets: Annotated[int, Meta(ge=0)]
    undecided: Annotated[int, Meta(ge=0)]
    replayed: Annotated[
        bool,
        Meta(description="An earlier post has started it: one with the same Idempotency-Key, or the same approval."),
    ] = False


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
    batches: Annotated[list[int], Meta(description="The number of targets in each batch.")]


class RunSummary(Struct):
    """The state of a run. Every target is in exactly one state, and `counts` add up to `targets`. A run that is done,
    aborted, cancelled or expired has ended once `ended` is set: until then some of its targets are under way."""

    id: RunId
    method: str
    subject: str
    selector: str | None
    retry_of: Annotated[RunId | None, Meta(description="The run whose targets it tries again.")]
    state: RunState
    reason: Annotated[str | None, Meta(description="Why it was aborted, in words.")]
    created: str | None
    ended: str | None
    late: Annotated[bool, Meta(description="Whether agents join until it expires; `targets` grows then.")]
    targets: Annotated[int, Meta(ge=0)]
    counts: dict[RunTargetState, int]


class RunList(Struct):
    """One page of runs, the newest first: those among the next 500 that the caller may see. `cursor` gets the next
    page; null on the last page."""

    runs: list[RunSummary]
    cursor: str | None


class Run(RunSummary):
    """A run with its pace, and its targets grouped by outcome and output."""

    expires: str | None
    outcomes: Annotated[list[RunOutcome], Meta(description="The largest groups, the largest one first.")]
    pace: RunPace
    node: Annotated[str | None, Meta(description="The node that drives it; null once it has ended.")]
