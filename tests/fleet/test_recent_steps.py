"""What a node keeps to say it again is bounded, whatever agents send."""

from __future__ import annotations

from fairlead.fleet import commands
from fairlead.fleet.command_record import StoredEnd
from fairlead.fleet.failover.recent_steps import BYTES, KEPT, RecentSteps
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


def test_what_is_older_than_the_last_moment_is_forgotten() -> None:
    now = 0.0
    recent = RecentSteps(lambda: now)
    recent.results_stored("old", "agent", "memory", commands.accepted())
    now = KEPT + 1
    recent.results_stored("new", "agent", "memory", commands.accepted())
    assert [step.command for step in recent.stored] == ["new"]
