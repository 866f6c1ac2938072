"""What the trial records of one command, and the judgement of many. Pure.

Filled by `traffic`, judged by `report`. A command is *lost* when its caller never learned what came of it: it heard
nothing, or a stream broke off. It ran *twice* when its agent began it twice or a line of it came twice.
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
    heard: float = 0.0
    """When its caller was told something for the last time."""
    lines: int = 0
    repeated: bool = False
    """A line came twice, or in the wrong place."""
    outcome: str = ""
    """`ok`, `lost`, `broken`, or the code of the error that its caller was told."""

    def hear(self, now: float, line: str) -> None:
        """The next line of output, as the agent writes it."""
        self.heard = now
        if not self.first:
            self.first = now
        self.repeated = self.repeated or line != text(self.key, self.lines)
        self.lines += 1

    def end(self, now: float, outcome: str) -> None:
        self.heard = now
        self.outcome = BROKEN if outcome == OK and (self.lines != self.count or self.repeated) else outcome

    @property
    def waited(self) -> float:
        """Seconds from the post to the first line; 0 if none came."""
        return self.first - self.posted if self.first else 0.0


def text(key: str, n: int) -> str:
    """Line `n` of a command's output; no two lines of a trial are the same."""
    return f"{key} {n}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of all commands that ended, or were heard of last, in one chapter."""

    commands: int
    lost: int
    twice: int
    failed: Mapping[str, int]
    """Those whose callers were told an error, by its code."""
    longest_wait: float
    """Seconds from a post to the first line."""
    p99_wait: float


def judge(calls: Iterable[Call], runs: Mapping[str, int], since: float, until: float) -> Verdict:
    """The commands that were heard of last between the two times. `runs`: how often each key was begun."""
    mine = [call for call in calls if since <= (call.heard or call.posted) < until]
    waits = sorted(call.waited for call in mine if call.first) or [0.0]
    failed = Counter(call.outcome for call in mine if call.outcome not in (OK, LOST))
    return Verdict(
        commands=len(mine),
        lost=sum(call.outcome == LOST for call in mine),
        twice=sum(call.repeated or runs.get(call.key, 0) > 1 for call in mine),
        failed=dict(failed),
        longest_wait=waits[-1],
        p99_wait=waits[int(0.99 * (len(waits) - 1))],
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
