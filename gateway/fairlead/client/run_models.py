"""The types of the API's answers about runs: their state, and the lines of their results.

Made by `run` from JSON, as those of `models` are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.client.models import Failure


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The state of a run, and its targets counted by state."""

    state: str
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndedTarget:
    """How one target of a run ended. `command` is the id of its command, and `output` has what it wrote: the first 64
    KiB, and nothing if it was `dropped` after the end, to make room for others."""

    offset: int
    agent: str
    command: str
    state: str
    code: str | None = None
    digest: str | None = None
    payload: object = None
    error: Failure | None = None
    output: list[dict[str, str]] = field(default_factory=list)
    truncated: bool = False
    dropped: bool = False
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class EndedGroup:
    """Targets of a run that ended in the same way with the same output; `agents` are the first few."""

    state: str
    count: int
    code: str | None = None
    digest: str | None = None
    agents: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list. Times are RFC 3339."""

    id: str
    method: str
    state: str
    targets: int
    late: bool = False
    subject: str = ""
    selector: str | None = None
    retry_of: str | None = None
    reason: str | None = None
    created: str | None = None
    ended: str | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunStatus(ListedRun):
    """A run, with its targets grouped by outcome and output."""

    expires: str | None = None
    outcomes: list[EndedGroup] = field(default_factory=list)
    node: str | None = None


@dataclass(frozen=True, slots=True)
class RunPreview:
    """The agents that a run would have as targets."""

    targets: int
    agents: list[str]
    undecided: int = 0
