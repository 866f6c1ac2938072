"""A command's record as values: what is written to Redis, what is read back, and what the scripts answer about it.

`Commands` makes and reads these values, and `routing` passes them on to the API. Only `Commands` and the scripts know
how each field is stored. They are msgspec structs because each command creates a dozen of them, and a frozen dataclass
takes ten times as long to create.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead.fleet import schema
from fairlead.fleet.schema import AgentRow, TargetState
from fairlead.shards import command_shard
from fairlead.telemetry.command_timing import CommandOrigin

UNCOUNTED: Final = frozenset({
    "record_lost", "results_gap", "outcome_unknown", "deadline", "cancel_unconfirmed", "agent_offline", "agent_deleted",
    "recording_unavailable", "expired", "cancelled",
})  # fmt: skip
"""Codes of the ends that a node gives a command. With its own end, the agent says how many results there are; with one
of these nobody does, so that Redis may have lost some that were read."""


class StoredEnd(msgspec.Struct, omit_defaults=True, frozen=True):
    """How a target ended, as stored in the record. `payload` is what the agent returned (UTF-8 JSON)."""

    payload: bytes | None = None
    code: str = ""
    message: str = ""
    temporary: bool = False
    details: dict[str, str | int | float | bool | None] = {}


class CommandMetadata(msgspec.Struct, array_like=True, frozen=True):
    """The part of a record that never changes and that no script reads. Times are Redis TIME in ms."""

    agent: str
    method: str
    lane: str
    created: int
    hold_until: int
    traceparent: str
    began: int = 0
    """When the request arrived, by the wall clock of the node that accepted it (ns); used only for traces."""
    subject: str = ""
    """Who posted it; "" if a node of an earlier version wrote the record."""
    signature: bytes = b""
    """What its caller signed it with, for the agent alone; empty if it is not signed."""
    content: str = ""
    """The name of the content that its agent gets as its input if it asks for it; "" if it has none."""


class OwnedCommand(msgspec.Struct, frozen=True):
    """A command with who posted it."""

    subject: str
    method: str
    agent: str


OUTCOME_UNKNOWN = StoredEnd(
    code="outcome_unknown",
    message="the agent was restarted while it had the command: whether the command took effect is not known",
)
EXPIRED = StoredEnd(code="expired", message="the deadline passed before the command could be sent", temporary=True)
CANCELLED = StoredEnd(code="cancelled", message="cancelled while it waited for the agent")


class NewRecord(msgspec.Struct, frozen=True):
    """A command as the platform posted it. Times are in ms; `hold_until` is how long the command waits for an absent
    agent. `retry` is `safe` if the command may run again after an unknown outcome. `retain` is `window` if results are
    removed as they are read and the agent waits for the reader."""

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
    """Until when the Idempotency-Key of the request is bound to this command; 0 if it had none."""
    subject: str = ""
    signature: bytes = b""
    content: str = ""
    results_limit: int | None = None
    """Bytes of results above which they are dropped soon after the end."""


class Acceptance(msgspec.Struct, frozen=True):
    """The answer to a post. `why` is ok, exists (it was accepted before), unknown (the agent has no row) or full (it
    has `opened` open commands); for one of many also failed (a key has a value of another type, so it is to be accepted
    by itself). Only the first two have the agent's row, if there is one; after the others nothing was written. With
    `offered` the command counts as sent to the process that the row names."""

    why: str
    row: AgentRow | None = None
    opened: int = 0
    offered: bool = False


class CommandOutcome(msgspec.Struct, frozen=True):
    """What remains of a command whose record is gone: its terminal state, and when it reached that state (ms)."""

    state: TargetState
    at: int


class Delivery(msgspec.Struct, frozen=True):
    """A command to write to the link. `running` says that the agent has already acknowledged it, so that nothing is
    written. `left` is the time to its deadline in ms."""

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
    signature: bytes = b""
    content: str = ""


class TakenOver(msgspec.Struct, frozen=True):
    """An open command as its new owner found it. `queued` says that it has yet to be sent. Otherwise the agent may have
    it, and its results before chunk `next` are stored."""

    queued: bool
    running: bool = False
    next: int = 0
    cancelled: bool = False
    has_input: bool = False


class Settled(msgspec.Struct, frozen=True):
    """What a call found or did that returns no command. `why` is gone (there is no record), over (it had ended before),
    stale (there is a newer owner), offered (to another process), ended or ok (by this call), kept (it is in another
    state) or asked (to cancel)."""

    why: str
    followers: tuple[str, ...] = ()
    state: str = ""
    origin: CommandOrigin | None = None
    """Set only for a target whose deadline has passed."""


class AppendResult(msgspec.Struct, frozen=True):
    """The answer to an append. `why` is ok, gone, over, fenced or gap; for one of many also failed (a key has a value
    of another type, so it is to be stored by itself). `held` is the number of bytes that are retained as a window and
    wait for a reader. `next` is the number of the next chunk, `added` how many results were stored, and `seq` that of
    all results, -1 if those that were added must be read from the store."""

    why: str
    state: str
    followers: tuple[str, ...]
    held: int
    next: int = 0
    added: int = 0
    seq: int = -1


class Result(msgspec.Struct, frozen=True):
    offset: int
    agent: str
    n: int
    kind: str
    payload: bytes


class Target(msgspec.Struct, frozen=True):
    """The current state of one target of a command."""

    agent: str
    state: TargetState
    gen: int
    next: int
    attempt: int
    ending: StoredEnd | None


class CommandRecord(msgspec.Struct, frozen=True):
    """A record as read from Redis. Times are Redis TIME in ms."""

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
    subject: str = ""
    signature: bytes = b""
    dropped_at: int = 0
    """When the results were dropped after the end; 0 if they are kept."""

    @property
    def method(self) -> str:
        return self.origin.method

    @property
    def created(self) -> int:
        return self.origin.created

    @property
    def may_lack_results(self) -> bool:
        """Whether there may have been more results than the record has, once it has ended."""
        endings = [target.ending for target in self.targets]
        return self.truncated or any(ending is not None and ending.code in UNCOUNTED for ending in endings)


class ResultPage(msgspec.Struct, frozen=True):
    """Results from one offset on; `seq` is the number of all results. `ended` is the record of a command that has
    ended, set only on the page with the last results.

    `held` is the number of bytes in the store if the results are retained as a window, otherwise -1.
    """

    seq: int
    results: list[Result]
    ended: CommandRecord | None
    held: int


class OutOfRange(msgspec.Struct, frozen=True):
    """There are no results at that offset: those before `edge` were trimmed, or were dropped after the end of the
    command, at `dropped_at` (ms), or there are only `edge` results, and `ended` is the record if no more will come."""

    trimmed: bool
    edge: int
    dropped_at: int = 0
    ended: CommandRecord | None = None

    @property
    def lost(self) -> bool:
        """Whether there may have been more results, which Redis had lost by the time the command ended."""
        return self.ended is not None and self.ended.may_lack_results


def command_keys(command: str, agent: str) -> tuple[str, ...]:
    """The keys of a record, and what else the end of a command changes."""
    shard = command_shard(command)
    *record, opened, row = schema.keys_to_append(shard, command, agent)
    return (*record, opened, schema.deadlines_key(shard), row, *schema.kept_keys(shard))
