"""What was asked, what was executed, what came back; and the judgement over it.

Filled by traffic (the callers' side) and by the agents (executions). A command is *lost* when nobody ever told its
caller an end or an error, *doubled* when it was executed twice or something of it was told twice, *broken* when it
ended well and its results are not what was written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

NOT_RUN = frozenset({"expired", "offline", "agent_offline", "agent_unknown"})
"""Ends and errors that promise that the command did not run."""


@dataclass(slots=True)
class Entry:
    """One command as its caller knows it. `id` is "" until an answer named it."""

    key: str
    agent: str
    count: int
    id: str = ""
    lines: list[str] = field(default_factory=list)
    offset: int = 0
    ends: list[str] = field(default_factory=list)
    """States, one each time that an end was told in one reading."""
    error: str = ""
    """The code of an explicit error, "" when there was none."""
    attached: int = 0
    """How often its results were taken up again."""
    stall: float = 0.0
    """Seconds: the longest time in which its caller heard nothing. The worst of all is how long the fault was felt."""
    _last: float = 0.0

    def heard(self, now: float) -> None:
        if self._last:
            self.stall = max(self.stall, now - self._last)
        self._last = now


@dataclass(frozen=True, slots=True)
class Judgement:
    commands: int
    outcomes: dict[str, int]
    lost: list[Entry]
    doubled: list[Entry]
    broken: list[Entry]

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.broken)

    def describe(self) -> str:
        """What is wrong, command by command."""
        told = []
        for word, entries in (("lost", self.lost), ("doubled", self.doubled), ("broken", self.broken)):
            told += [f"{word}: {entry}" for entry in entries[:5]]
        return "\n".join(told)


class Ledger:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._executed: Counter[str] = Counter()

    def open(self, key: str, agent: str, count: int) -> Entry:
        entry = Entry(key, agent, count)
        self.entries.append(entry)
        return entry

    def executed(self, key: str) -> None:
        """By the caller's key, not by the id: one key that ran under two ids is a command that was doubled."""
        self._executed[key] += 1

    def judge(self) -> Judgement:
        lost, doubled, broken = [], [], []
        outcomes: Counter[str] = Counter()
        for entry in self.entries:
            expected = [f"{entry.id} {n}" for n in range(entry.count)]
            outcomes[entry.ends[0] if entry.ends and not entry.error else entry.error or "nothing"] += 1
            if not entry.ends and not entry.error:
                lost.append(entry)
            if len(entry.ends) > 1 or len(set(entry.lines)) != len(entry.lines) or self._executed[entry.key] > 1:
                doubled.append(entry)
            whole = entry.lines == expected and self._executed[entry.key] == 1
            astray = entry.lines != expected[: len(entry.lines)]
            ran_against_its_word = (NOT_RUN & {entry.error, *entry.ends}) and self._executed[entry.key]
            if astray or ran_against_its_word or (entry.ends == ["ok"] and not whole):
                broken.append(entry)
        return Judgement(len(self.entries), dict(outcomes), lost, doubled, broken)
