"""What the API takes and gives, as types: handlers encode these, and the OpenAPI document is made of them.

Read by the handlers and by `openapi`. One source, so that the document cannot say something else than the answers.
Times are RFC 3339 in UTC with milliseconds; durations are seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from fairlead.app.api.identifiers import AgentId, CommandId, LabelKey, LabelValue, Method
from fairlead.fleet.schema import Presence, TargetState


class Queue(Struct, forbid_unknown_fields=True):
    """on_offline: wait for the agent so many seconds."""

    queue: Annotated[float, Meta(gt=0, le=7 * 86400)]


class NewCommand(Struct, forbid_unknown_fields=True):
    """A command to be run on one agent."""

    agent: AgentId
    method: Method
    payload: Annotated[Raw, Meta(description="JSON for the agent, passed on as it is.")] = field(
        default_factory=lambda: Raw(b"{}")
    )
    deadline: Annotated[float, Meta(ge=0.1, le=86400, description="Seconds for all of it.")] = 60.0
    lane: Literal["interactive", "bulk"] = "interactive"
    on_offline: Annotated[
        Literal["fail"] | Queue, Meta(description="What to do when the agent is offline: fail, or wait.")
    ] = "fail"
    retain: Annotated[
        Literal["all", "window"],
        Meta(description="`window`: results go as they are read, and the agent waits for its reader."),
    ] = "all"
    retry: Annotated[
        Literal["never", "safe"], Meta(description="`safe`: run it again when its outcome is unknown.")
    ] = "never"


class AcceptedCommand(Struct):
    """The command is written down. `why` says in words why its agent is not online."""

    id: CommandId
    state: TargetState
    presence: Annotated[str, Meta(description="online, away or offline; empty when the post was a repetition.")]
    why: str


class CommandError(Struct):
    """What went wrong, for a program (`code`, `temporary`) and for a person (`message`)."""

    code: str
    message: str
    temporary: bool
    details: dict[str, str | int | float | bool | None] = {}


class CommandEnd(Struct):
    """How a command ended at its agent. `payload` is what the agent returned. Where that is no JSON, `payload` is null
    and `payload_base64` has its octets."""

    agent: AgentId
    state: TargetState
    payload: Annotated[object, Meta(description="Any JSON, null when nothing was returned.")]
    error: CommandError | None
    total: Annotated[int, Meta(ge=0, description="Chunks of output.")]
    truncated: Annotated[bool, Meta(description="Output beyond the limit was dropped.")]
    payload_base64: Annotated[
        str | UnsetType, Meta(description="Only when what the agent returned is no JSON: its octets.")
    ] = UNSET


class Target(Struct):
    """One agent of a command."""

    agent: AgentId
    state: TargetState
    attempt: Annotated[int, Meta(ge=0, description="How often it was sent.")]
    total: Annotated[int, Meta(ge=0, description="Chunks of output stored so far.")]
    end: CommandEnd | None


class Command(Struct):
    """A command as it stands. Every target is in exactly one state, and `counts` add up to their number."""

    id: CommandId
    method: str
    lane: str
    state: Annotated[TargetState | None, Meta(description="That of the only target; null when there are several.")]
    created: str | None
    expires: str | None
    cancel_asked: bool
    results: Annotated[int, Meta(ge=0, description="Result lines: the next offset.")]
    truncated: bool
    counts: dict[TargetState, int]
    targets: list[Target]


class CancelledCommand(Struct):
    """The end of the command was asked for; `state` is what it is now."""

    id: CommandId
    state: TargetState


class Agent(Struct):
    """An agent as the platform sees it. `facts` are its own words, `labels` the platform's."""

    id: AgentId
    state: Presence
    node: str | None
    since: Annotated[str | None, Meta(description="Linked since, or last seen.")]
    why: Annotated[str | None, Meta(description="Why it is not online, in words.")]
    last_close: Annotated[str | None, Meta(description="Close code of its last link, in words.")]
    facts: dict[str, str]
    labels: dict[str, str]
    labels_lost: Annotated[
        str | None,
        Meta(description="Since when its labels are missing, which were lost with Redis's data; set them again."),
    ]


class LastLink(Struct):
    """The agent's link: the last one when it has none. `conn` counts the attempts of this boot."""

    sid: str
    gen: int
    boot: str
    conn: int
    rtt: Annotated[
        float | None,
        Meta(description="Last round trip in seconds; null without one, and when its node does not answer."),
    ]


class Latency(Struct):
    """Quantiles of the latest durations, in seconds; right to within a tenth."""

    p50: float
    p99: float


class Link(Struct):
    """A link as the node that holds it sees it. Times in seconds, sizes in bytes."""

    node: str
    sid: str
    age: float
    rtt: Annotated[float | None, Meta(description="Last round trip; null before the first heartbeat.")]
    round_trips: Annotated[Latency | None, Meta(description="Of the latest heartbeats.")]
    latency: Annotated[
        dict[str, Latency],
        Meta(description="Of the latest commands, by stage: deliver, ack, first_byte, run, store."),
    ]
    ended: Annotated[int, Meta(ge=0, description="Commands that ended on it.")]
    failed: Annotated[int, Meta(ge=0, description="Those of them that failed.")]
    reconnects: Annotated[int, Meta(ge=0, description="Attempts of this start of the agent before this one.")]
    last_close: Annotated[str | None, Meta(description="Close code of the link before, in words.")]
    last_reason: Annotated[str | None, Meta(description="What was said when that one closed.")]
    encoding: str
    messages: Annotated[int, Meta(ge=0, description="Numbered messages received.")]
    commands: Annotated[int, Meta(ge=0, description="Commands open on it.")]
    unstored: Annotated[int, Meta(ge=0, description="Received, not yet in Redis.")]
    undelivered: Annotated[int, Meta(ge=0, description="Commands that wait to be written to it.")]
    congested: Annotated[bool, Meta(description="The agent does not read as fast as it is sent.")]


class RankedLink(Link, kw_only=True):
    """One of the worst links of the fleet."""

    agent: AgentId


class LinkRanking(Struct):
    """The worst links, the worst first."""

    links: list[RankedLink]
    missing: Annotated[list[str], Meta(description="Nodes that did not answer in time.")]


class FailedCommand(Struct):
    """A command that failed on this agent."""

    at: str
    what: str


class AgentDetail(Agent, kw_only=True):
    """An agent with its link, what is open for it, and what went wrong last."""

    link: LastLink
    last_reason: Annotated[str | None, Meta(description="What was said when its last link closed.")]
    recent_failures: Annotated[list[FailedCommand], Meta(max_length=5, description="The latest first.")]
    open_commands: list[CommandId]


class AgentPage(Struct):
    """One page; `cursor` asks for the next, null: that was all."""

    agents: list[Agent]
    cursor: str | None
    undecided: Annotated[
        int,
        Meta(
            ge=0, description="Agents that are left out because their labels were lost and the selector asks for them."
        ),
    ]


class Labels(Struct, forbid_unknown_fields=True):
    """Labels to set; null removes one."""

    labels: Annotated[dict[LabelKey, LabelValue | None], Meta(max_length=64)]


class DeletedAgent(Struct):
    """The agent was forgotten, and what was stored of it is gone."""

    id: AgentId
    commands: Annotated[int, Meta(ge=0, description="Commands that were open for it and have been ended.")]
    events: Annotated[int, Meta(ge=0, description="Events of it that were removed.")]


class DisconnectedAgent(Struct):
    """The agent was told to connect anew."""

    id: AgentId
    node: str


class Problem(Struct):
    """RFC 9457. `code` is stable and for programs; more members may stand beside these."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    temporary: bool
    field_: str | None = field(default=None, name="field")
