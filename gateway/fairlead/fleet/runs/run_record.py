"""A run as values: what its caller asked for, the states of it and of its targets, and what is read back from Redis.

A run is one method on many agents. `Runs` writes and reads these values, `routing.runs` decides with them, and the API
shows them. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from fairlead.fleet.runs.poster import Poster
from fairlead.fleet.schema import TargetState


class RunState(StrEnum):
    """The states of a run. One that is aborted, cancelled or expired starts nothing more; it has ended once every
    target has."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    ABORTED = "aborted"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def stopped(self) -> bool:
        """True if no target is started any more."""
        return self not in (RunState.RUNNING, RunState.PAUSED)


class RunTargetState(StrEnum):
    """The states of a run's target. Every target is in exactly one of them."""

    WAITING = "waiting"
    STARTED = "started"
    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OFFLINE = "offline"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    NOT_STARTED = "not_started"
    QUEUED = "queued"
    """Its command waits in Redis for its agent, which was not linked when it started."""

    @property
    def over(self) -> bool:
        """True for terminal states: they are set once and never change."""
        return self not in _OPEN

    @property
    def failure(self) -> bool:
        """Whether it counts for the abort threshold."""
        return self in _FAILURES


_OPEN = frozenset({RunTargetState.WAITING, RunTargetState.STARTED, RunTargetState.QUEUED})
_FAILURES = frozenset({RunTargetState.FAILED, RunTargetState.TIMEOUT, RunTargetState.OFFLINE, RunTargetState.EXPIRED})
LETTERS = dict(zip(RunTargetState, b"wroftacesnq", strict=True))
"""Each state as one byte, as Redis holds it: a run of 100,000 targets takes 100 KB for their states."""
STATES = {letter: state for state, letter in LETTERS.items()}


_OF_COMMANDS = {
    state.value: RunTargetState(state.value) if state.over else RunTargetState.STARTED for state in TargetState
}


def state_of_command(state: str) -> RunTargetState:
    """The state of a run's target whose command is in `state`, which is a `TargetState`."""
    return _OF_COMMANDS[state]


class Pace(msgspec.Struct, array_like=True, frozen=True):
    """How fast a run goes, and when it stops by itself.

    With a `ramp`, so many targets are under way at first, and twice as many after each round, up to `concurrency`. The
    first `canary` targets end before any other starts, and one that fails aborts the run. So do `abort_count` failures
    (0 for never), and a share of failures above `abort_share` among at least `abort_minimum` targets that have ended.
    `batches` has the number of targets up to the end of each batch: none starts before all of the batches before its
    own have ended. Empty means a single batch.
    """

    concurrency: int
    ramp: int = 0
    canary: int = 0
    abort_count: int = 0
    abort_share: float = 1.0
    abort_minimum: int = 0
    batches: tuple[int, ...] = ()


class RunTerms(msgspec.Struct, array_like=True, frozen=True):
    """What a run's caller asked for, which never changes. `deadline` is that of one target, in ms, and `expires` the
    time at which the whole run ends (Redis TIME in ms). `queue` is how long the command of a target waits for an agent
    that is not linked (ms), which is added to its deadline; 0 if it is to fail then."""

    method: str
    lane: str
    retry: str
    deadline: int
    skips_offline: bool
    selector: str
    """"" if the caller gave a list."""
    subject: str
    traceparent: str
    created: int
    expires: int
    pace: Pace
    queue: int = 0
    retry_of: str = ""
    """The run whose targets are tried again here; "" if this is no such run."""
    tenant: str = ""
    signature: bytes = b""
    """With which its caller has signed it, for the agents alone; empty if it is not signed."""
    fail_on_exit: bool = False
    """Whether a target whose program exited with a code other than 0, or by a signal, counts as failed."""
    late: bool = False
    """Whether agents that match the selector join until the run expires. Those that are not linked are no targets."""
    poster: Poster | None = None
    """Whose rights decide which agents join; None if none do."""
    content: str = ""
    """The name of the content that each agent gets as the input of its command, if it asks for it."""
    spread: int = 0
    """Over how many ms from its creation on the starts of its targets are spread evenly; 0 for as fast as it goes."""


class RunEnd(msgspec.Struct, array_like=True, frozen=True):
    """How one target ended. `index` is its place among the run's agents. `digest` is that of everything it returned;
    "" if nothing was, or too much to compare."""

    index: int
    state: RunTargetState
    code: str = ""
    digest: str = ""


class RunGroup(msgspec.Struct, array_like=True):
    """Targets that ended in the same way with the same output: how many, and the first few of them by their index."""

    state: RunTargetState
    code: str
    digest: str
    count: int
    first: list[int]


class RunRow(msgspec.Struct, frozen=True):
    """The state of a run as read from Redis. `gen` is that of its owner, which drives it until `until` (ms), and `seq`
    the number of steps that it has stored. `wish` is what a caller has asked for since: pause, resume or cancel."""

    id: str
    state: RunState
    terms: RunTerms
    targets: int
    counts: dict[RunTargetState, int]
    owner: str
    gen: int
    until: int
    seq: int
    wish: str
    ended: int
    """When its last target ended (ms); 0 before."""
    reason: str
    """Why it was aborted, in words."""


class RunStep(msgspec.Struct, frozen=True):
    """What one step of a run stores, beside the counts, the state and the reason that the run has after it. `joined`
    is the number of targets that are new, the last ones of all."""

    joined: int
    started: Sequence[int]
    queued: Sequence[int]
    ends: Sequence[RunEnd]
    groups: Sequence[RunGroup]
    state: RunState
    counts: dict[RunTargetState, int]
    reason: str
    drops_waiting: bool
    """All targets that are still waiting become not_started."""
    ended: bool
    done_wish: str


class OwnedRun(msgspec.Struct, frozen=True):
    """A run as its new owner found it. `stale` says that it had no owner for so long that the records of commands may
    have expired since: one that is missing may have run."""

    id: str
    terms: RunTerms
    payload: bytes
    agents: list[str]
    gen: int
    until: int
    seq: int
    stale: bool = False
