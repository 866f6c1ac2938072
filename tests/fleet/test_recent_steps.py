"""What a node keeps to say it again is bounded, whatever agents send."""

from __future__ import annotations

from fairlead.fleet import commands
from fairlead.fleet.command_record import StoredEnd
from fairlead.fleet.failover.recent_steps import BYTES, COUNT, KEPT, RecentSteps, SentStep
from fairlead.fleet.schema import TargetState

MEBIBYTE = 1 << 20


def _held(steps: RecentSteps) -> int:
    return sum(len(arg) for step in steps.stored for arg in step.steps if isinstance(arg, bytes))


def test_payloads_of_ends_count_like_chunks() -> None:
    recent = RecentSteps(lambda: 0.0)
    end = commands.ending(0, TargetState.OK, StoredEnd(payload=bytes(MEBIBYTE)))
    for number in range(40):
        recent.results_stored(f"command-{number}", "agent", "memory", end)
        assert _held(recent) <= BYTES
    chunk = commands.data(0, "out", bytes(MEBIBYTE))
    for number in range(40):
        recent.results_stored(f"other-{number}", "agent", "memory", chunk)
        assert _held(recent) <= BYTES
    assert recent.stored[-1].command == "other-39"


def test_nothing_grows_old_while_redis_may_lack_it() -> None:
    now, settled = 0.0, False
    recent = RecentSteps(lambda: now)
    recent.settled = lambda: settled

    def names() -> tuple[list[str], list[str]]:
        return [step.command for step in recent if isinstance(step, SentStep)], [s.command for s in recent.stored]

    def add(command: str) -> None:
        recent.sent(command, "agent", 1, "memory", 1)
        recent.results_stored(command, "agent", "memory", commands.accepted())

    add("before")
    now = KEPT + 1
    add("meanwhile")
    assert names() == (["before", "meanwhile"], ["before", "meanwhile"])
    settled = True
    add("after")
    assert names() == (["meanwhile", "after"], ["meanwhile", "after"])


def test_steps_are_bounded_however_long_redis_is_away() -> None:
    recent = RecentSteps(lambda: 0.0)
    recent.settled = lambda: False
    for number in range(COUNT + 10):
        recent.sent(str(number), "agent", 1, "memory", 1)
    kept = [step.command for step in recent if isinstance(step, SentStep)]
    assert (len(kept), kept[-1]) == (COUNT, str(COUNT + 9))


def test_what_is_older_than_the_last_moment_is_forgotten() -> None:
    now = 0.0
    recent = RecentSteps(lambda: now)
    recent.results_stored("old", "agent", "memory", commands.accepted())
    now = KEPT + 1
    recent.results_stored("new", "agent", "memory", commands.accepted())
    assert [step.command for step in recent.stored] == ["new"]
