"""The bodies of requests and answers as types. The handlers encode them, and the OpenAPI document is generated from
them.

They are the only source of both, so that the document cannot differ from the answers. Times are RFC 3339 in UTC with
milliseconds; durations are seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from fairlead.app.api.identifiers import (
    AgentId,
    ChosenId,
    CommandId,
    Digest,
    LabelKey,
    LabelValue,
    Method,
    Signature,
)
from fairlead.fleet.node_table import Presence
from fairlead.fleet.schema import TargetState


class Queue(Struct, forbid_unknown_fields=True):
    """Wait up to `queue` seconds for an offline agent. They are added to the command's deadline."""

    queue: Annotated[float, Meta(gt=0, le=7 * 86400)]


class NewCommand(Struct, forbid_unknown_fields=True):
    """A command to run on one agent."""

    agent: AgentId
    method: Method
    payload: Annotated[Raw, Meta(description="JSON for the agent, passed on unchanged.")] = field(
        default_factory=lambda: Raw(b"{}")
    )
    deadline: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86400,
            description="Seconds from the request until the command must have ended. With on_offline `queue`, its "
            "seconds are added, whether or not the agent is offline.",
        ),
    ] = 60.0
    lane: Literal["interactive", "bulk"] = "interactive"
    on_offline: Annotated[
        Literal["fail"] | Queue, Meta(description="What to do if the agent is offline: fail, or wait for it.")
    ] = "fail"
    retain: Annotated[
        Literal["all", "window"],
        Meta(
            description="`all` keeps results after the end. `window` removes results as they are read, and makes the "
            "agent wait for its reader."
        ),
    ] = "all"
    retry: Annotated[
        Literal["never", "safe"], Meta(description="`safe` allows a second run if the outcome of the first is unknown.")
    ] = "never"
    content: Annotated[
        Digest | UnsetType,
        Meta(
            description="The digest of a stored content, which the agent gets as its input if it asks for it, as "
            "`script` does. Other input is not taken then."
        ),
    ] = UNSET
    unchecked: Annotated[
        bool | UnsetType,
        Meta(
            description="Whether a payload that does not fit a built-in method is passed on all the same, for agents "
            "that have a method of their own under its name."
        ),
    ] = UNSET
    id: Annotated[
        ChosenId | UnsetType,
        Meta(
            description="The id that the signature covers; only beside a signature, and in place of an Idempotency-Key."
        ),
    ] = UNSET
    signature: Annotated[
        Signature | UnsetType,
        Meta(
            description="What the agent verifies, in base64; the gateway passes it on unread. docs/protocol.md "
            "describes it."
        ),
    ] = UNSET


class StoredContent(Struct):
    """The content is stored. It is kept for an hour, and until an hour after the deadline of whatever names it."""

    digest: Digest
    bytes: Annotated[int, Meta(ge=0)]


class AcceptedCommand(Struct):
    """The command is stored. `why` says why its agent is not online, in words."""

    id: CommandId
    state: TargetState
    presence: Annotated[str, Meta(description="online, away or offline; empty if the request repeated an earlier one.")]
    why: str
    recorded: Annotated[
        bool, Meta(description="The gateway records what the terminal shows, and its operator can replay it.")
    ] = False
    replayed: Annotated[
        bool,
        Meta(description="An earlier post has started it: one with the same Idempotency-Key, or the same approval."),
    ] = False


class CommandError(Struct):
    """What went wrong: `code` and `temporary` are for programs, `message` is for people."""

    code: str
    message: str
    temporary: bool
    details: dict[str, str | int | float | bool | None] = {}


class CommandEnd(Struct):
    """How a command ended at its agent. `payload` is what the agent returned. If that is not JSON, `payload` is null
    and `payload_base64` has the bytes."""

    agent: AgentId
    state: TargetState
    payload: Annotated[object, Meta(description="Any JSON; null if the agent returned nothing.")]
    error: CommandError | None
    total: Annotated[int, Meta(ge=0, description="Number of output chunks.")]
    truncated: Annotated[bool, Meta(description="Output beyond the limit was discarded.")]
    dropped: Annotated[
        bool,
        Meta(description="Output, and `payload` if it was large, were dropped after the end, to make room for others."),
    ]
    payload_base64: Annotated[
        str | UnsetType, Meta(description="The bytes that the agent returned; present only if they are not JSON.")
    ] = UNSET


class Target(Struct):
    """The agent that a command runs on."""

    agent: AgentId
    state: TargetState
    attempt: Annotated[int, Meta(ge=0, description="How often the command was sent to the agent.")]
    total: Annotated[int, Meta(ge=0, description="Number of output chunks stored so far.")]
    end: CommandEnd | None


class Command(Struct):
    """The state of a command. Every target is in exactly one state, and `counts` add up to the number of targets."""

    id: CommandId
    method: str
    lane: str
    subject: Annotated[
        str | None,
        Meta(description="Who posted it, such as `token:ci`; null if an earlier version of the gateway accepted it."),
    ]
    state: Annotated[
        TargetState | None, Meta(description="The state of the only target; null if there are several targets.")
    ]
    created: str | None
    expires: str | None
    cancel_asked: bool
    results: Annotated[int, Meta(ge=0, description="Number of result lines, which is the next offset.")]
    truncated: bool
    dropped: Annotated[
        str | None, Meta(description="When the results were dropped after the end; null if they are kept.")
    ]
    counts: dict[TargetState, int]
    targets: list[Target]


class CommandPage(Struct):
    """Commands that have not ended. `cursor` gets the next page; null on the last page."""

    commands: list[Command]
    cursor: str | None


class CancelledCommand(Struct):
    """Cancellation was requested; `state` is the current state."""

    id: CommandId
    state: TargetState


class Agent(Struct):
    """An agent. The agent reports `facts` about itself; the platform sets `labels`."""

    id: AgentId
    state: Presence
    node: str | None
    since: Annotated[str | None, Meta(description="When its link began, or when it was last seen.")]
    why: Annotated[str | None, Meta(description="Why it is not online, in words.")]
    last_close: Annotated[
        str | None,
        Meta(description="The close code of its last link, with its meaning; 1006 if the node of the link was killed."),
    ]
    facts: dict[str, str]
    labels: dict[str, str]
    labels_lost: Annotated[
        str | None,
        Meta(description="When its labels were lost together with the data in Redis; set them again."),
    ]
    cloned: Annotated[
        str | None, Meta(description="When two copies of the agent were last found to use its key; null after a day.")
    ]


class LastLink(Struct):
    """The agent's current or last link. `conn` counts the connection attempts of this start of the agent."""

    sid: str
    gen: int
    boot: str
    conn: int
    rtt: Annotated[
        float | None,
        Meta(description="Last round trip in seconds; null if none is known, or if the node does not answer."),
    ]


class Latency(Struct):
    """Quantiles of the latest durations in seconds, accurate to 10 %."""

    p50: float
    p99: float


class Link(Struct):
    """A link as the node that holds it sees it."""

    node: str
    sid: str
    age: float
    rtt: Annotated[float | None, Meta(description="Last round trip in seconds; null before the first heartbeat.")]
    round_trips: Annotated[Latency | None, Meta(description="Round trips of the latest heartbeats.")]
    latency: Annotated[
        dict[str, Latency],
        Meta(description="Latencies of the latest commands by stage: deliver, ack, first_byte, run, store."),
    ]
    ended: Annotated[int, Meta(ge=0, description="Commands that ended on this link.")]
    failed: Annotated[int, Meta(ge=0, description="Commands that ended on this link and failed.")]
    reconnects: Annotated[int, Meta(ge=0, description="Earlier connection attempts of this start of the agent.")]
    last_close: Annotated[str | None, Meta(description="The close code of the previous link, with its meaning.")]
    last_reason: Annotated[str | None, Meta(description="The reason that was given when the previous link closed.")]
    encoding: str
    messages: Annotated[int, Meta(ge=0, description="Numbered messages received from the agent.")]
    commands: Annotated[int, Meta(ge=0, description="Commands that are open on this link.")]
    unstored: Annotated[int, Meta(ge=0, description="Messages received and not stored in Redis yet.")]
    undelivered: Annotated[int, Meta(ge=0, description="Commands waiting to be written to this link.")]
    congested: Annotated[bool, Meta(description="The agent reads more slowly than the node sends.")]


class RankedLink(Link, kw_only=True):
    """One of the worst links of the fleet, with its agent."""

    agent: AgentId


class LinkRanking(Struct):
    """The worst links of the fleet, the worst one first."""

    links: list[RankedLink]
    missing: Annotated[list[str], Meta(description="Nodes that did not answer in time.")]


class FailedCommand(Struct):
    """A command that failed on this agent: when, and how it ended, in words."""

    at: str
    message: str


class ChangedFact(Struct):
    """The value of a fact before and after a change; null for none."""

    before: str | None
    after: str | None


class FactChange(Struct):
    """Facts that the agent told anew. `more` counts further ones, which are too long to be kept."""

    at: str
    facts: dict[str, ChangedFact]
    more: int


class AgentDetail(Agent, kw_only=True):
    """An agent with its link, its open commands, its recent failures and the last changes of its facts."""

    link: LastLink
    last_reason: Annotated[
        str | None,
        Meta(description="The reason given when its last link closed, or that its node ended without closing it."),
    ]
    recent_failures: Annotated[
        list[FailedCommand], Meta(max_length=5, description="The last commands that failed, the latest one first.")
    ]
    open_commands: list[CommandId]
    fact_changes: Annotated[
        list[FactChange], Meta(max_length=5, description="The last changes of its facts, the latest one first.")
    ]


class AgentPage(Struct):
    """One page of agents. `cursor` gets the next page; null on the last page."""

    agents: list[Agent]
    cursor: str | None
    undecided: Annotated[
        int,
        Meta(ge=0, description="Agents left out because the selector asks for labels that were lost."),
    ]
    count: Annotated[
        int | None,
        Meta(description="All agents that match, on whichever page; null if the request does not ask for it."),
    ] = None


class Labels(Struct, forbid_unknown_fields=True):
    """Labels to set; null removes a label."""

    labels: Annotated[dict[LabelKey, LabelValue | None], Meta(max_length=64)]


class DeletedAgent(Struct):
    """The agent and everything stored about it were deleted."""

    id: AgentId
    commands: Annotated[int, Meta(ge=0, description="Number of open commands that were ended.")]
    events: Annotated[int, Meta(ge=0, description="Number of events that were removed.")]


class DisconnectedAgent(Struct):
    """The agent's node was told to close the link."""

    id: AgentId
    node: str


class Problem(Struct):
    """A problem document (RFC 9457). `code` is stable and meant for programs. Further members depend on the code."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    temporary: bool
    field_: str | None = field(default=None, name="field")


def iso(ms: int) -> str | None:
    """RFC 3339 with milliseconds, in UTC; None for 0, which stands for never."""
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
