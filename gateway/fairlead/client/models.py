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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDetail(Agent):
    """An agent, its newest link, its open commands and its recent failures."""

    link: LastLink
    last_reason: str | None = None
    recent_failures: list[FailedCommand] = field(default_factory=list)
    """The latest first, five at most."""
    open_commands: list[str] = field(default_factory=list)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """A service token without its secret. `roles` are those to which it is limited, None for all that are bound to its
    name. Times are RFC 3339.
    """

    id: str
    name: str
    roles: list[str] | None
    created: str
    created_by: str
    expires: str
    expired: bool = False
    used: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken(TokenInfo):
    """A new service token with its text."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentTokenInfo:
    """An enrolment token without its secret: it enrols `uses` agents whose ids match the pattern `agents`, and has
    enrolled `used`, each with `labels`; `rate` is how many it enrols in a minute, 0 for any number. Times are RFC 3339.
    """

    id: str
    agents: str
    uses: int
    used: int
    created: str
    created_by: str
    expires: str
    expired: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    rate: int = 0
    approval: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEnrolmentToken(EnrolmentTokenInfo):
    """A new enrolment token with its text."""

    token: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An event of an agent. `id` is the agent's own: an event that comes twice has the same. `offset` is its position
    among the events of the fleet. `data` is the decoded JSON; if the agent sent something else, `data` is None and
    `data_base64` has the bytes. `time` is RFC 3339, by the agent's clock.
    """

    offset: str
    agent: str
    type: str
    id: str
    time: str | None = None
    data: object = None
    data_base64: str | None = None


@dataclass(frozen=True, slots=True)
class LostEvents:
    """Events that were removed before they were read: those up to `offset`."""

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
    that is not JSON, `payload` is None and `payload_base64` has the bytes.
    """

    agent: str
    state: str
    payload: object = None
    error: Failure | None = None
    total: int = 0
    truncated: bool = False
    payload_base64: str | None = None

    def exit(self) -> Exit:
        """The payload as the result of `exec`; an empty Exit if it is something else."""
        try:
            return msgspec.convert(self.payload, Exit)
        except msgspec.MsgspecError:
            return Exit()
