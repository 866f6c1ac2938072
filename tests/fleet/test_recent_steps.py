"""What a node keeps to say it again is bounded, whatever agents send."""

from __future__ import annotations

import random
import tracemalloc

from fairlead.fleet import commands
from fairlead.fleet.command_record import StoredEnd
from fairlead.fleet.failover.recent_steps import (
    BYTES,
    KEPT,
    STEP_BYTES,
    AcceptedStep,
    CancelStep,
    EndedStep,
    KeyStep,
    RecentSteps,
    SentStep,
    StoredStep,
)
from fairlead.fleet.schema import TargetState
from fairlead.store.reply import Arg

MEBIBYTE = 1 << 20
TERMS: tuple[Arg, ...] = (1_764_230_400_000, 3_600_000, "never", "all", 0)


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
    assert list(recent.stored)[-1].command == "other-39"


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
    about = bytes(MEBIBYTE)
    for number in range(40):
        recent.accepted(str(number), "agent", 0, 0, TERMS, about)
        assert recent.size <= STEP_BYTES
    kept = [step.command for step in recent if isinstance(step, AcceptedStep)]
    assert kept == [str(number) for number in range(40 - len(kept), 40)]
    assert len(kept) == STEP_BYTES // MEBIBYTE - 1


def test_what_is_older_than_the_last_moment_is_forgotten() -> None:
    now = 0.0
    recent = RecentSteps(lambda: now)
    recent.results_stored("old", "agent", "memory", commands.accepted())
    now = KEPT + 1
    recent.results_stored("new", "agent", "memory", commands.accepted())
    assert [step.command for step in recent.stored] == ["new"]


def test_steps_are_told_as_they_were() -> None:
    recent = RecentSteps(lambda: 0.0)
    assert not recent
    end = StoredEnd(b"{}", "failed", "it failed", True, {"exit_code": 1, "signal": None, "share": 0.5})
    recent.key_bound("fl1:idem:{7}:hash", "body command")
    recent.accepted("command", "agent", 5, 6, TERMS, b"about")
    recent.sent("command", "agent", 7, "memory", 2)
    recent.cancel_asked("command", "agent")
    recent.ended("command", "agent", TargetState.FAILED, end)
    assert list(recent) == [
        KeyStep("fl1:idem:{7}:hash", "body command"),
        AcceptedStep("command", "agent", 5, 6, TERMS, b"about"),
        SentStep("command", "agent", 7, "memory", 2),
        CancelStep("command", "agent"),
        EndedStep("command", "agent", TargetState.FAILED, end),
    ]
    steps = [*commands.accepted(), *commands.data(0, "out", b"\xff"), *commands.ending(1, TargetState.FAILED, end)]
    recent.results_stored("command", "agent", "memory", steps)
    assert list(recent.stored) == [StoredStep("command", "agent", "memory", steps)]
    assert recent


def test_a_command_is_remembered_in_few_bytes() -> None:
    recent = RecentSteps(lambda: 0.0)

    def play(number: int) -> None:
        command, agent = f"7-019ac4d2-8a3e-7c41-b0d5-{number:012}", f"agent-{number % 500}"
        end = commands.ending(1, TargetState.OK, StoredEnd(payload=b'{"exit_code":0}'))
        recent.accepted(command, agent, 1_764_230_400_000 + number, 3_600_000, TERMS, bytes(120))
        recent.sent(command, agent, 1_000 + number, "019ac4d2-8a3e", 1)
        steps = [*commands.accepted(), *commands.data(0, "stdout", bytes(64)), *end]
        recent.results_stored(command, agent, "019ac4d2-8a3e", steps)

    play(0)
    tracemalloc.start()
    for number in range(1, 1_001):
        play(number)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / 1_000 <= 800


def test_what_was_stored_together_is_told_in_its_order() -> None:
    """Whether steps come one by one or together, and however many of them are packed into one piece."""
    recent = RecentSteps(lambda: 0.0)
    steps: list[StoredStep] = []
    for number in range(200):
        command = f"command-{number:04}"
        ack = StoredStep(command, "agent", "memory", list(commands.accepted()))
        end = StoredStep(command, "agent", "memory", list(commands.ending(0, TargetState.OK, StoredEnd())))
        steps += [ack, end]
        if number % 3:
            recent.results_stored(command, "agent", "memory", ack.steps)
            recent.results_stored(command, "agent", "memory", end.steps)
        else:
            recent.stored_together([ack, end])
        recent.accepted_together([AcceptedStep(command, "agent", 5, 6, TERMS, b"about")])
        recent.sent(command, "agent", 7, "memory", 1)
    assert list(recent.stored) == steps
    assert [step.command for step in recent if isinstance(step, SentStep)] == [one.command for one in steps[::2]]
    assert len(list(recent)) == 400


def test_large_results_are_kept_as_they_are() -> None:
    recent = RecentSteps(lambda: 0.0)
    chunks = [[*commands.data(n, "out", random.Random(n).randbytes(4_000))] for n in range(20)]
    recent.stored_together([StoredStep("together", "agent", "memory", chunk) for chunk in chunks])
    for chunk in chunks:
        recent.results_stored("alone", "agent", "memory", chunk)
    assert [step.steps for step in recent.stored] == chunks * 2


def test_the_commands_of_a_run_are_remembered_in_few_bytes() -> None:
    recent = RecentSteps(lambda: 0.0)
    ids = random.Random(0)

    def play(first: int) -> None:
        names = [
            (f"01a22405-e516-7{ids.randbytes(2).hex()[1:]}-8a01-{ids.randbytes(6).hex()}", f"agent-{number}")
            for number in range(first, first + 32)
        ]
        about = b"sys.info bulk 1764230400000 1764230500000 shared-token "
        accepted = [AcceptedStep(c, a, 1_764_230_400_000, 3_600_000, TERMS, about + a.encode()) for c, a in names]
        recent.accepted_together(accepted)
        for command, agent in names:
            recent.sent(command, agent, 1_764_230_400_000, ids.randbytes(8).hex(), 1)
        end = commands.ending(1, TargetState.OK, StoredEnd(payload=b'{"exit_code":0}'))
        steps = [*commands.accepted(), *commands.data(0, "stdout", b"the same output of each of them"), *end]
        recent.stored_together([StoredStep(c, a, ids.randbytes(8).hex(), steps) for c, a in names])

    play(0)
    tracemalloc.start()
    for first in range(32, 3_232, 32):
        play(first)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / 3_200 <= 150
    assert len(list(recent.stored)) == 3_232
