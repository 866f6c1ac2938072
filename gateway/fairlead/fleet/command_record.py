"""A command as it stands in Redis: what is written, what is read back, and what the scripts answer about it.

Values alone, made and read by `Commands`, handed through `routing` up to the API. How each field is stored is the
business of `Commands` and of the scripts.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fairlead.fleet.schema import TargetState
from fairlead.telemetry.command_timing import CommandOrigin


class StoredEnd(msgspec.Struct, omit_defaults=True, frozen=True):
    """How a target ended, as it stands in the record. `payload` is what the agent returned (UTF-8 JSON)."""

    payload: bytes | None = None
    code: str = ""
    message: str = ""
    temporary: bool = False
    details: dict[str, str | int | float | bool | None] = {}


class CommandMetadata(msgspec.Struct, array_like=True, frozen=True):
    """What stands in a record and never changes, and what no script looks at. Times in ms of Redis TIME."""

    agent: str
    method: str
    lane: str
    created: int
    hold_until: int
    traceparent: str
    began: int = 0
    """When the request came, by the wall clock of the node that took it (ns): for traces alone."""


OUTCOME_UNKNOWN = StoredEnd(
    code="outcome_unknown",
    message="the agent was started anew while it had the command: whether that was done is not known",
)
EXPIRED = StoredEnd(code="expired", message="the deadline passed before the command could be sent", temporary=True)
CANCELLED = StoredEnd(code="cancelled", message="cancelled while it waited for the agent")


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A command as the platform posted it. Times in ms; `hold` is how long an absent agent is waited for.
    `retry`: `safe` when it may be run again after an outcome that nobody knows.
    `retain`: `window` when results go as they are read, and the agent waits for the reader."""

    id: str
    agent: str
    method: str
    payload: bytes
    lane: str
    created: int
    expires: int
    retention: int
    hold_until: int
    retry: str = "never"
    retain: str = "all"
    traceparent: str = ""
    began: int = 0
    remembered: int = 0
    """Until when the Idempotency-Key of the post is bound to this command; 0 when it had none."""


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What is left of a command whose record is gone: its terminal state, and when it came into it (ms)."""

    state: TargetState
    at: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A command to write to the link. `running`: the agent has acked it already, there is nothing to write."""

    running: bool
    next: int
    attempt: int
    left: int
    cancelled: bool
    has_input: bool
    retry: str
    payload: bytes
    lane: str
    origin: CommandOrigin


@dataclass(frozen=True, slots=True)
class TakenOver:
    """An open command as its new owner found it. `queued`: never sent; else the agent may know it, up to `next`."""

    queued: bool
    running: bool = False
    next: int = 0
    cancelled: bool = False
    has_input: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """There is nothing to deliver: gone, over, stale (a newer owner) or ended by this very call."""

    why: str
    followers: tuple[str, ...] = ()
    state: str = ""
    origin: CommandOrigin | None = None
    """Told only by a target that has run into its deadline."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The answer to append. `why`: ok, gone, over, fenced, gap. `held`: bytes that wait in a window for a reader."""

    why: str
    state: str
    followers: tuple[str, ...]
    held: int


@dataclass(frozen=True, slots=True)
class Result:
    offset: int
    agent: str
    n: int
    kind: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Target:
    """One target of a command as it stands."""

    agent: str
    state: TargetState
    gen: int
    next: int
    attempt: int
    ending: StoredEnd | None


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """A record read back. Times in ms of Redis TIME."""

    id: str
    agent: str
    origin: CommandOrigin
    lane: str
    expires: int
    hold_until: int
    cancel_asked: int
    has_input: bool
    seq: int
    truncated: bool
    targets: list[Target]

    @property
    def method(self) -> str:
        return self.origin.method

    @property
    def created(self) -> int:
        return self.origin.created


@dataclass(frozen=True, slots=True)
class ResultPage:
    """Results from one offset on, of `seq` that there are. `ended`: these were the last, and how it ended.

    `held`: bytes in the store of results that are retained as a window, -1 of others.
    """

    seq: int
    results: list[Result]
    ended: CommandRecord | None
    held: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """There are no results at that offset: they were trimmed away up to `edge`, or there are only `edge` of them."""

    trimmed: bool
    edge: int
