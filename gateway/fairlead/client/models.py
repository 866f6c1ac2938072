"""The types of the API's answers: agents, their links, and the lines of a command's results.

Made by `client` and `result_lines` from JSON. Members that the API gains later are ignored, and those that it may
leave out have a default: an older client works with a newer gateway.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of the fleet. If it is not online, `why` says why, in words. Times are RFC 3339."""

    id: str
    state: str
    node: str | None = None
    since: str | None = None
    why: str | None = None
    last_close: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    labels_lost: str | None = None
    """When its labels were lost together with the data in Redis, if they have not been set again."""
    cloned: str | None = None
    """When two copies of the agent were last found to use its key; None if not within a day."""


@dataclass(frozen=True, slots=True)
class LastLink:
    """The newest link of an agent. `conn` counts the attempts since the agent started; `rtt` is the last round trip in
    seconds, None if there is none or if the node that holds the link does not answer.
    """

    sid: str
    boot: str
    conn: int
    rtt: float | None = None


@dataclass(frozen=True, slots=True)
class FailedCommand:
    """A recent command of an agent that failed: when, and how it ended, in words."""

    at: str
    message: str


@dataclass(frozen=True, slots=True)
class ChangedFact:
    """The value of a fact before and after a change; None for none."""

    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class FactChange:
    """Facts that the agent told anew. `more` counts further ones, which are too long to be kept."""

    at: str
    facts: dict[str, ChangedFact]
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDetail(Agent):
    """An agent, its newest link, its open commands, its recent failures and the last changes of its facts."""

    link: LastLink
    last_reason: str | None = None
    recent_failures: list[FailedCommand] = field(default_factory=list)
    """The latest first, five at most."""
    open_commands: list[str] = field(default_factory=list)
    fact_changes: list[FactChange] = field(default_factory=list)
    """The latest first, five at most."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of the latest durations, in seconds."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Link:
    """The state of a link, from the node that holds it, in seconds and bytes."""

    node: str
    age: float
    commands: int
    undelivered: int
    unstored: int
    congested: bool
    rtt: float | None = None
    sid: str = ""
    encoding: str = ""
    round_trips: Latency | None = None
    latency: dict[str, Latency] = field(default_factory=dict)
    """Latencies of its latest commands by stage: deliver, ack, first_byte, run, store."""
    ended: int = 0
    failed: int = 0
    reconnects: int = 0
    last_close: str | None = None
    last_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedLink(Link):
    """One of the worst links of the fleet."""

    agent: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """The worst links, the worst first, and the nodes that did not answer in time."""

    links: list[RankedLink]
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node as it last reported itself. `state` is serving, draining, stopped or lost; counts are since the start of
    its process. Times are RFC 3339, `lag` is in seconds, `cpu` and `memory` are shares from 0 to 1."""

    name: str
    state: str
    excluded_by: str | None = None
    links: int = 0
    capacity: int = 0
    commands: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    lag: float = 0.0
    accepted: int = 0
    refused: int = 0
    moved: int = 0
    since: str = ""
    heartbeat: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Deleted:
    """An agent that was deleted, with the number of its open commands and of its stored events."""

    id: str
    commands: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True)
class NeededApproval:
    """Methods that need the approval of another person, with one of the roles `approvers`, on the agents that `agents`
    describes in the words of the file of roles; `always` on all that the question is about."""

    methods: list[str] = field(default_factory=list)
    agents: str = ""
    approvers: list[str] = field(default_factory=list)
    always: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the caller is. `expires` is set for a service token and for a user, `issuer` and `groups` only for a user."""

    subject: str
    administrator: bool = False
    roles: list[str] = field(default_factory=list)
    unbound: list[str] = field(default_factory=list)
    """The roles to which the token is limited and which are not bound to its name."""
    expires: str | None = None
    issuer: str | None = None
    groups: list[str] = field(default_factory=list)
    tenant: str = "default"
    approvals: list[NeededApproval] = field(default_factory=list)
    """What the caller starts only with the approval of another person."""


@dataclass(frozen=True, slots=True)
class AllowingRule:
    """A rule that allows something on some agents, and which agents these are, in the words of the file of roles."""

    role: str
    agents: str


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether the caller may do something, and why."""

    allowed: bool
    reason: str = ""
    rules: list[AllowingRule] = field(default_factory=list)
    approvals: list[NeededApproval] = field(default_factory=list)
    """The approvals of other persons that it needs besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodInfo:
    """A built-in method of agents. `effect` is reads, changes or runs, `allowed` says whether the caller may run it on
    some agents, and the others are JSON Schemas."""

    name: str
    text: str = ""
    effect: str = ""
    allowed: bool = False
    input: bool = False
    output: list[str] = field(default_factory=list)
    arguments: dict[str, object] = field(default_factory=dict)
    result: dict[str, object] | None = None
    row: dict[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An event of an agent. `id` is the agent's own: an event that comes twice has the same. `offset` is its position
    among the events of the fleet. `data` is the decoded JSON; if the agent sent something else, `data` is None and
    `data_base64` has the bytes. `time` is RFC 3339, by the agent's clock. `attempt` is given to readers of a group: 2
    and more if another one had the event before and did not acknowledge it.
    """

    offset: str
    agent: str
    type: str
    id: str
    time: str | None = None
    data: object = None
    data_base64: str | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class LostEvents:
    """Events that were removed before they were read, or before a group acknowledged them: those up to `offset`."""

    offset: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of output. `offset` counts the results of the command, `n` the agent's chunks."""

    offset: int
    agent: str
    n: int
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    message: str = ""
    temporary: bool = False
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: one of the two is set, or neither if the method runs no program."""

    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended. `payload` is the decoded JSON, in the method's own shape. If the agent returned something
    that is not JSON, `payload` is None and `payload_base64` has the bytes. `dropped` says that the output, and a large
    payload, were dropped after the end, to make room for others.
    """

    agent: str
    state: str
    payload: object = None
    error: Failure | None = None
    total: int = 0
    truncated: bool = False
    payload_base64: str | None = None
    dropped: bool = False

    def exit(self) -> Exit:
        """The payload as the result of `exec`; an empty Exit if it is something else."""
        try:
            return msgspec.convert(self.payload, Exit)
        except msgspec.MsgspecError:
            return Exit()


class QuotaInfo(msgspec.Struct):
    """None for no quota."""

    agents: int | None = None
    open_commands: int | None = None
    command_rate: int | None = None
    run_concurrency: int | None = None
    events_bytes: int | None = None


class TenantInfo(msgspec.Struct):
    """A tenant, with what it has of its quotas. What has no quota is not counted."""

    name: str
    agents: int
    open_commands: int | None = None
    run_concurrency: int | None = None
    quotas: QuotaInfo = field(default_factory=QuotaInfo)
