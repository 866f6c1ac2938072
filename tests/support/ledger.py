"""What was requested, executed and returned; and the judgement of it.

Filled by traffic (the callers' side) and by the agents (executions, events). A command is *lost* when its caller never
received an end or an error, *doubled* when it took effect twice or something of it was told twice, *broken* when its
end is not one that its results and its caller's actions allow. Everything is recorded by the caller's own key: one key
that ran under two ids is a doubled command.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

NOT_RUN = frozenset({"expired", "offline", "agent_offline", "agent_unknown"})
"""Ends and errors that promise that the command did not run."""
ATTEMPTS = 5
"""How often a command that is safe to repeat may run."""
UNCONFIRMED = 9.5
"""Seconds: after 10 a cancel ends a command without its agent's word. Some less, for clocks and for the way."""
OFFLINE = 42.0
"""Seconds: an agent without a link is offline after 45. Some less, for what callers hear late."""


class Way(StrEnum):
    """What the caller does with a command."""

    WORK = "work"
    ECHO = "echo"
    """Sends each line as input, reads it back."""
    CANCEL = "cancel"
    """Cancels it in mid-stream."""
    SAFE = "safe"
    """Posts it as safe to repeat."""
    BULK = "bulk"
    """A MiB at once."""


def line(key: str, n: int, width: int) -> str:
    """Line `n` of a command's output; no two lines of a run are the same."""
    return f"{key} {n} {'x' * width}\n"


@dataclass(slots=True)
class Entry:
    """One command as its caller knows it. `id` is "" until an answer named it."""

    key: str
    agent: str
    count: int
    way: Way = Way.WORK
    width: int = 0
    id: str = ""
    ids: set[str] = field(default_factory=set)
    """Every id that any answer gave for the key: there may be one."""
    via: str = ""
    """The node its results are read at."""
    pieces: list[str] = field(default_factory=list)
    offset: int = 0
    ends: list[str] = field(default_factory=list)
    """States, one for each end that one reading returned."""
    error: str = ""
    """The code of an explicit error, "" when there was none."""
    wrong: str = ""
    """What a caller met that no promise allows."""
    cancelled: bool = False
    """Its end was asked for, and the wish accepted, before any end was received."""
    cancel_sent: float = 0.0
    """When its end was asked for first: the wish may have been taken although the answer was lost."""
    attached: int = 0
    """How often its results were taken up again."""
    updates: list[float] = field(default_factory=list)
    """When its caller began, and when it received something."""
    output_times: list[float] = field(default_factory=list)
    """When its caller received output of its agent."""

    @property
    def over(self) -> bool:
        return bool(self.ends or self.error)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def stall(self) -> float:
        """Seconds: the longest time in which its caller heard nothing."""
        return max((b - a for a, b in zip(self.updates, self.updates[1:], strict=False)), default=0.0)

    @property
    def unconfirmed(self) -> bool:
        """Its end came as late as that of a cancel which the agent does not confirm."""
        return self.way is Way.CANCEL and self.updates[-1] - self.cancel_sent >= UNCONFIRMED

    def recovery_seconds(self, repaired_at: float) -> float:
        """Seconds from the fault's end to the first news of a command that was open then."""
        later = [at for at in self.updates if at > repaired_at]
        return later[0] - repaired_at if later and self.updates[0] < repaired_at else 0.0

    @property
    def outcome(self) -> str:
        """The code of its error, or its first end."""
        return self.error or (self.ends[0] if self.ends else "nothing")

    def __str__(self) -> str:
        took = self.updates[-1] - self.updates[0] if self.updates else 0.0
        asked = f", cancel sent after {self.cancel_sent - self.updates[0]:.1f} s" if self.cancel_sent else ""
        return (
            f"{self.key} ({self.way}) {self.id or 'no id'} at {self.agent}: ends {self.ends}, error {self.error!r}, "
            f"{len(self.text)} characters, offset {self.offset}, ids {len(self.ids)}, {self.wrong or 'no complaint'}, "
            f"{took:.1f} s{asked}, longest silence {self.stall:.1f} s, taken up again {self.attached} times"
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    commands: int
    outcomes: dict[str, int]
    lost: list[Entry]
    doubled: list[Entry]
    broken: list[Entry]
    forgotten: list[Entry]
    """Ran a second time because their caller repeated the post after the store had lost its data, key included."""

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.broken)

    def describe(self) -> str:
        """What is wrong, command by command."""
        lines = []
        for word, entries in (("lost", self.lost), ("doubled", self.doubled), ("broken", self.broken)):
            lines += [f"{word}: {entry}" for entry in entries[:5]]
        return "\n".join(lines)


class Ledger:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.emitted: set[str] = set()
        """Events that agents have emitted and that must come to be stored."""
        self.emptied = 0.0
        """When the store's data was destroyed, and with it what it knew of the keys used until then."""
        self._executed: Counter[str] = Counter()

    def open(self, agent: str, count: int, way: Way, width: int) -> Entry:
        entry = Entry(f"key-{len(self.entries)}", agent, count, way, width)
        self.entries.append(entry)
        return entry

    def executed(self, key: str) -> None:
        self._executed[key] += 1

    def runs(self, key: str) -> int:
        """How often the command with this key was executed."""
        return self._executed[key]

    def judge(self) -> Judgement:
        lost: list[Entry] = []
        doubled: list[Entry] = []
        broken: list[Entry] = []
        forgotten: list[Entry] = []
        outcomes: Counter[str] = Counter()
        output_times: defaultdict[str, list[float]] = defaultdict(list)
        for entry in self.entries:
            output_times[entry.agent] += entry.output_times
        for entry in self.entries:
            outcomes[entry.outcome] += 1
            if not entry.over:
                lost.append(entry)
            if self._doubled(entry):
                (forgotten if self._forgotten(entry) else doubled).append(entry)
            elif self._broken(entry, output_times[entry.agent]):
                broken.append(entry)
        # Callers hear late of an agent that was silent, so some of these had news meanwhile; most of them, never.
        sudden = [e for e in self.entries if e.error == "cancel_unconfirmed" and e.stall < UNCONFIRMED]
        if len(sudden) > max(2, sum(bool(e.cancel_sent) for e in self.entries) // 4):
            broken += sudden
        return Judgement(len(self.entries), dict(outcomes), lost, doubled, broken, forgotten)

    def _doubled(self, entry: Entry) -> bool:
        lines = entry.text.splitlines()
        runs = ATTEMPTS if entry.way is Way.SAFE else 1
        reported_twice = len(set(lines)) != len(lines) or len(entry.ends) > 1
        return reported_twice or self._executed[entry.key] > runs or len(entry.ids) > 1

    def _forgotten(self, entry: Entry) -> bool:
        """Only what cannot be known any more: a second run of a key of before, and nothing received twice."""
        lines = entry.text.splitlines()
        whole = len(set(lines)) == len(lines) and len(entry.ends) <= 1
        return whole and entry.updates[0] < self.emptied and self._executed[entry.key] <= 2 and len(entry.ids) <= 2

    def _broken(self, entry: Entry, output_times: list[float]) -> bool:
        """`output_times`: when callers received output of the entry's agent, of any command."""
        expected = "".join(line(entry.key, n, entry.width) for n in range(entry.count))
        runs = self._executed[entry.key]
        if entry.wrong or not expected.startswith(entry.text):
            return True
        if entry.ends == ["ok"] and (entry.text != expected or not runs or entry.cancelled):
            return True
        if entry.error == "cancel_unconfirmed" and not entry.unconfirmed:
            return True
        if entry.error == "agent_offline":
            latest = entry.updates[-1]
            if any(latest - OFFLINE < at < latest for at in output_times):
                return True
        if "cancelled" in entry.ends and entry.way is not Way.CANCEL:
            return True
        return bool(NOT_RUN & {entry.error, *entry.ends} and runs)
