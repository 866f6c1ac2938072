"""The table of a trial: a row for each chapter of each fleet. Used by `run` when all agents of a fleet have gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from trial.calls import LOST, Call, judge, longest_silence
from trial.cpu import CpuUsage, shares
from trial.links import RecordedLink, longest_without, most_within, moves, seconds_above, skew, spread
from trial.traffic import CallerLog

LOST_SHOWN = 20

HEAD = (
    "chapter", "took", "commands", "lost", "twice", "error returned", "not sent", "links ended in 1 s / in 10 s",
    "seconds above the budget", "longest without a link", "longest silence of a probed agent",
    "wait for the first line, median / p99 / longest", "moves per agent, mean / most", "max/mean of links afterwards",
    "cores idle", "callers late",
)  # fmt: skip
BEFORE, AFTERWARDS = "agents connect", "afterwards"
"""The rows of what was decided before the first chapter, and after the last one while callers waited for the ends of
their commands: each command is in one row."""


@dataclass(frozen=True, slots=True)
class Played:
    """A chapter that is over. Times are seconds since the epoch."""

    name: str
    began: float
    ended: float
    pods: Sequence[str]
    """Addresses of the ready pods at its end."""
    note: str


@dataclass(slots=True)
class FleetResult:
    """All that was recorded of one fleet."""

    fleet: str
    agents: int
    budget: int
    """Moves in a second, at most; 0 for none."""
    played: list[Played] = field(default_factory=list)
    caller_log: CallerLog = field(default_factory=CallerLog)
    runs: Mapping[str, int] = field(default_factory=dict)
    links: list[RecordedLink] = field(default_factory=list)
    usages: list[CpuUsage] = field(default_factory=list)

    def rows(self) -> list[list[str]]:
        return [self._row(chapter) for chapter in self.played]

    def lost(self) -> list[Call]:
        return [call for call in self.caller_log.calls if call.outcome == LOST]

    def faults(self) -> int:
        """Commands that were lost, or that ran twice."""
        verdict = judge(self.caller_log.calls, self.runs, 0, inf)
        return verdict.lost + verdict.twice

    def notes(self) -> list[str]:
        """What the table has no room for, of each chapter that has any."""
        return [f"{one.name}: {'; '.join(lines)}" for one in self.played if (lines := list(self._notes(one)))]

    def _notes(self, chapter: Played) -> Iterator[str]:
        if chapter.note:
            yield chapter.note
        failures = Counter[str]()
        for second in self.caller_log.seconds:
            if chapter.began <= second.at < chapter.ended:
                failures.update(second.failures)
        if failures:
            yield f"attempts of callers that failed: {', '.join(f'{n:,} {what}' for what, n in failures.most_common())}"
        if used := shares(self.usages, chapter.began, chapter.ended):
            lines = ", ".join(f"{kind} {share:.0%}" for kind, share in used.items() if share >= 0.005)
            yield f"of the processors' time: {lines}"

    def _row(self, chapter: Played) -> list[str]:
        since, until = chapter.began, chapter.ended
        verdict = judge(self.caller_log.calls, self.runs, since, until)
        moved = moves(self.links, since, until)
        ended = [link.ended for link in self.links]
        failed = ", ".join(f"{count} {code}" for code, count in sorted(verdict.failed.items())) or "0"
        # A moment before the end: the next chapter begins there.
        counts = spread(self.links, chapter.pods, until - 0.5)
        late = max((second.lag for second in self.caller_log.seconds if since <= second.at < until), default=0.0)
        return [
            chapter.name,
            f"{until - since:.0f} s",
            f"{verdict.commands:,}",
            str(verdict.lost),
            str(verdict.twice),
            failed,
            str(verdict.not_sent),
            f"{most_within(1, ended, since, until)} / {most_within(10, ended, since, until)}",
            str(seconds_above(self.budget, ended, since, until)) if self.budget else "–",
            f"{longest_without(self.links, since, until):.2f} s",
            f"{longest_silence(self.caller_log.probes, since, until):.2f} s",
            f"{verdict.median_wait:.2f} / {verdict.p99_wait:.2f} / {verdict.longest_wait:.2f} s",
            f"{sum(moved.values()) / self.agents:.2f} / {max(moved.values(), default=0)}",
            f"{skew(counts):.2f} ({'/'.join(str(n) for n in sorted(counts.values(), reverse=True))})"
            if counts
            else "–",
            f"{shares(self.usages, since, until).get('idle', 0.0):.0%}",
            f"{late:.2f} s",
        ]

    def rate(self) -> float:
        """Commands a second, of all chapters."""
        seconds = sum(one.ended - one.began for one in self.played)
        return len(self.caller_log.calls) / seconds if seconds else 0.0

    def idle_share(self) -> float:
        """Share of the time in which an agent runs no command: an agent's mean."""
        seconds = sum(one.ended - one.began for one in self.played)
        busy = sum(call.last_line_at - call.first for call in self.caller_log.calls if call.first)
        return 1 - busy / (self.agents * seconds) if seconds else 1.0


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(result: FleetResult) -> str:
    lines = [
        f"### {result.fleet}",
        "",
        f"{result.agents:,} agents, {result.rate():.0f} commands a second that take 20 s each; an agent is inside one "
        f"for {1 - result.idle_share():.0%} of the time.",
        "",
        markdown(HEAD, result.rows()),
        "",
        *(f"- {note}" for note in result.notes()),
        *(f"- lost: {_trace(call)}" for call in result.lost()[:LOST_SHOWN]),
    ]
    return "\n".join(lines)


def _trace(call: Call) -> str:
    """The last that is known of a lost command. Times are seconds after the post."""
    first, last_line_at, failed, ended = (
        f"{at - call.posted:.1f} s" if at else "never"
        for at in (call.first, call.last_line_at, call.failed, call.ended)
    )
    return (
        f"`{call.key}` ({call.id or 'no id'}), {call.lines} lines, first {first}, last line {last_line_at}, "
        f"attempts failed from {failed} on ({call.failure}), given up {ended}; its record: `{call.record}`"
    )
