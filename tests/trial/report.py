"""The table of a trial: a row for each chapter of each fleet. Used by `run` when all agents of a fleet have gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trial.calls import Call, Probe, judge, longest_silence
from trial.links import Link, longest_without, most_in_a_second, moves, skew, spread

HEAD = (
    "chapter", "took", "commands", "lost", "twice", "told an error", "closes in 1 s", "longest without a link",
    "longest silence of a probed agent", "wait for the first line, p99 / longest", "moves per agent, mean / most",
    "max/mean of links afterwards",
)  # fmt: skip


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
class Result:
    """All that was recorded of one fleet."""

    fleet: str
    agents: int
    played: list[Played] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    runs: Mapping[str, int] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    repeated: Mapping[str, int] = field(default_factory=dict)
    """Attempts of callers, by what went wrong."""

    def rows(self) -> list[list[str]]:
        return [self._row(chapter) for chapter in self.played]

    def notes(self) -> list[str]:
        return [f"{one.name}: {one.note}" for one in self.played if one.note]

    def _row(self, chapter: Played) -> list[str]:
        since, until = chapter.began, chapter.ended
        verdict = judge(self.calls, self.runs, since, until)
        moved = moves(self.links, since, until)
        failed = ", ".join(f"{count} {code}" for code, count in sorted(verdict.failed.items())) or "0"
        # A moment before the end: the next chapter begins there.
        counts = spread(self.links, chapter.pods, until - 0.5)
        return [
            chapter.name,
            f"{until - since:.0f} s",
            f"{verdict.commands:,}",
            str(verdict.lost),
            str(verdict.twice),
            failed,
            str(most_in_a_second(self.links, since, until)),
            f"{longest_without(self.links, since, until):.2f} s",
            f"{longest_silence(self.probes, since, until):.2f} s",
            f"{verdict.p99_wait:.2f} / {verdict.longest_wait:.2f} s",
            f"{sum(moved.values()) / self.agents:.2f} / {max(moved.values(), default=0)}",
            f"{skew(counts):.2f} ({'/'.join(str(n) for n in sorted(counts.values(), reverse=True))})",
        ]

    def rate(self) -> float:
        """Commands a second, of all chapters."""
        seconds = sum(one.ended - one.began for one in self.played)
        return len(self.calls) / seconds if seconds else 0.0

    def idle_share(self) -> float:
        """Share of the time in which an agent runs no command: an agent's mean."""
        seconds = sum(one.ended - one.began for one in self.played)
        busy = sum(call.heard - call.first for call in self.calls if call.first)
        return 1 - busy / (self.agents * seconds) if seconds else 1.0


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tell(result: Result) -> str:
    said = [
        f"### {result.fleet}",
        "",
        f"{result.agents:,} agents, {result.rate():.0f} commands a second that take 20 s each; an agent is inside one "
        f"for {1 - result.idle_share():.0%} of the time.",
        "",
        markdown(HEAD, result.rows()),
        "",
        *(f"- {note}" for note in result.notes()),
        f"- callers repeated attempts: {', '.join(f'{n} {what}' for what, n in result.repeated.items()) or 'none'}",
    ]
    return "\n".join(said)
