"""What the trial records of one command, and the judgement of many. Pure.

Filled by `traffic`, judged by `report`. A command is *lost* when it may have been accepted and its caller never learned
what came of it, although it asked for longer than a command can last. It ran *twice* when its agent began it twice or a
line of it came twice. It is *not sent* when no connection to the fleet could be made: nothing happened then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

LOST = "lost"
OK = "ok"
BROKEN = "broken"
"""It ended well, and its lines are not those that the agent wrote."""
NOT_SENT = "not_sent"
OPEN = "open"
"""Its caller was stopped before it could know."""


@dataclass(slots=True)
class Call:
    """One command as its caller knows it. Times are seconds since the epoch, as the Ingress writes them."""

    key: str
    agent: str
    count: int
    """Lines that it shall output."""
    posted: float
    first: float = 0.0
    """When its first line came; 0 until then."""
    last_line_at: float = 0.0
    """When its caller received something for the last time."""
    lines: int = 0
    repeated: bool = False
    """A line came twice, or in the wrong place."""
    outcome: str = ""
    """`ok`, `lost`, `broken`, `not_sent`, `open`, or the code of the error that its caller received."""
    id: str = ""
    """That the fleet gave it; empty until the caller knows it."""
    sent: bool = False
    """Whether a request with it may have reached the fleet."""
    failed: float = 0.0
    """When the first attempt since its caller received something failed; 0 if none has."""
    failure: str = ""
    """What the last failed attempt met."""
    ended: float = 0.0
    """When its caller learned the outcome, or gave up."""
    record: str = ""
    """What the API said of a lost command when its caller gave up."""

    def receive_line(self, now: float, line: str) -> None:
        """The next line of output, as the agent writes it."""
        self.last_line_at, self.failed = now, 0.0
        if not self.first:
            self.first = now
        self.repeated = self.repeated or line != text(self.key, self.lines)
        self.lines += 1

    def fail(self, now: float, what: str, *, sent: bool = True) -> None:
        """An attempt has failed. `sent`: whether its request may have reached the fleet."""
        self.failed, self.failure, self.sent = self.failed or now, what, self.sent or sent

    def end(self, now: float, outcome: str) -> None:
        self.last_line_at = self.ended = now
        self.outcome = BROKEN if outcome == OK and (self.lines != self.count or self.repeated) else outcome

    def give_up(self, now: float) -> None:
        self.ended = now
        self.outcome = LOST if self.sent else NOT_SENT

    @property
    def decided(self) -> float:
        """The moment by which it belongs to a chapter: when its caller received the outcome, or when what the caller
        had to give up began to go wrong."""
        return self.failed or self.last_line_at or self.posted if self.outcome in (LOST, NOT_SENT, OPEN) else self.ended

    @property
    def waited(self) -> float:
        """Seconds from the post to the first line; 0 if none came."""
        return self.first - self.posted if self.first else 0.0


def text(key: str, n: int) -> str:
    """Line `n` of a command's output; no two lines of a trial are the same."""
    return f"{key} {n}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of all commands that belong to one chapter."""

    commands: int
    lost: int
    twice: int
    not_sent: int
    failed: Mapping[str, int]
    """Those whose callers received an error, by its code."""
    longest_wait: float
    """Seconds from a post to the first line."""
    p99_wait: float
    median_wait: float


def judge(calls: Iterable[Call], runs: Mapping[str, int], since: float, until: float) -> Verdict:
    """The commands that were decided between the two times. `runs`: how often each key was begun."""
    mine = [call for call in calls if since <= call.decided < until]
    waits = sorted(call.waited for call in mine if call.first) or [0.0]
    failed = Counter(call.outcome for call in mine if call.outcome not in (OK, LOST, NOT_SENT))
    return Verdict(
        commands=len(mine),
        lost=sum(call.outcome == LOST for call in mine),
        twice=sum(call.repeated or runs.get(call.key, 0) > 1 for call in mine),
        not_sent=sum(call.outcome == NOT_SENT for call in mine),
        failed=dict(failed),
        longest_wait=waits[-1],
        p99_wait=waits[int(0.99 * (len(waits) - 1))],
        median_wait=waits[len(waits) // 2],
    )


@dataclass(frozen=True, slots=True)
class Probe:
    """A command without output that an agent of the sample was asked to answer at once."""

    agent: str
    posted: float
    answered: float
    """0 if it was refused or not answered."""


def longest_silence(probes: Sequence[Probe], since: float, until: float) -> float:
    """Seconds: the longest time between two answers of one agent, of answers of which the second came in that time."""
    answers: dict[str, list[float]] = {}
    for probe in probes:
        if probe.answered:
            answers.setdefault(probe.agent, []).append(probe.answered)
    longest = 0.0
    for times in answers.values():
        times.sort()
        for before, after in pairwise(times):
            if since <= after < until:
                longest = max(longest, after - before)
    return longest
