"""The decisions of one run, played in any order: every sum adds up at every moment, and nothing exceeds its pace."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fleet.runs.run_record import LETTERS, STATES, Pace, RunGroup, RunState, RunStep, RunTargetState
from fairlead.routing.runs.run_plan import FIRST, GROUPS, RunPlan

OVER = [state for state in RunTargetState if state.over and state is not RunTargetState.NOT_STARTED]
paces = st.builds(
    Pace,
    concurrency=st.integers(1, 12),
    ramp=st.integers(0, 3),
    canary=st.integers(0, 3),
    abort_count=st.integers(0, 5),
    abort_share=st.sampled_from([0.05, 0.5, 1.0]),
    abort_minimum=st.integers(0, 6),
    batches=st.sets(st.integers(1, 39), max_size=4).map(lambda ends: tuple(sorted(ends))),
)
moves = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "end", "queue", "pause", "resume", "cancel", "expire", "die", "join"]),
        st.integers(0, 99),
    ),
    max_size=80,
)


def plan_of(pace: Pace, targets: int, late: bool = False) -> RunPlan:
    return RunPlan(pace, bytearray([LETTERS[RunTargetState.WAITING]] * targets), late=late)


class Stored:
    """What Redis holds of a run: as the script of steps writes it."""

    def __init__(self, targets: int) -> None:
        self.states = bytearray([LETTERS[RunTargetState.WAITING]] * targets)
        self.counts: dict[RunTargetState, int] = {RunTargetState.WAITING: targets} if targets else {}
        self.state = RunState.RUNNING
        self.reason = ""
        self.groups: dict[tuple[str, str, str], RunGroup] = {}
        self.ended: list[int] = []

    def take(self, step: RunStep | None) -> None:
        if step is None:
            return
        self.states += bytes([LETTERS[RunTargetState.WAITING]]) * step.joined
        for target in step.started:
            self.states[target] = LETTERS[RunTargetState.STARTED]
        for target in step.queued:
            self.states[target] = LETTERS[RunTargetState.QUEUED]
        for end in step.ends:
            self.states[end.index] = LETTERS[end.state]
            self.ended.append(end.index)
        if step.drops_waiting:
            self.states = self.states.replace(b"w", b"n")
        for group in step.groups:
            copy = RunGroup(group.state, group.code, group.digest, group.count, list(group.first))
            self.groups[group.state, group.code, group.digest] = copy
        self.counts, self.state, self.reason = dict(step.counts), step.state, step.reason

    def check(self) -> None:
        assert Counter(STATES[letter] for letter in self.states) == self.counts
        assert len(set(self.ended)) == len(self.ended)
        assert sum(group.count for group in self.groups.values()) == len(self.ended)

    def loaded(self, pace: Pace, late: bool) -> RunPlan:
        return RunPlan(pace, bytearray(self.states), self.state, self.reason, list(self.groups.values()), late=late)


@settings(max_examples=400, deadline=None)
@given(pace=paces, targets=st.integers(0, 40), late=st.booleans(), moves=moves, data=st.data())
def test_a_run_keeps_its_pace_and_its_sums_whatever_happens(
    pace: Pace, targets: int, late: bool, moves: list[tuple[str, int]], data: st.DataObject
) -> None:
    if late:
        pace = msgspec.structs.replace(pace, batches=())
    targets = targets if late else max(1, targets)
    plan, stored = plan_of(pace, targets, late), Stored(targets)
    for move, number in moves:
        stopped_before, failures_before = plan.state.stopped, plan.failures
        match move:
            case "start":
                paused = plan.state is RunState.PAUSED
                started = plan.start(number + 1)
                assert not (started and (stopped_before or paused))
                assert plan.in_flight <= max(plan.width, plan.in_flight - len(started))
                assert plan.in_flight <= pace.concurrency
                for target in started:  # everything in the batches before its own has ended
                    ends = [end for end in pace.batches if end <= target]
                    for before in range(max(ends, default=0)):
                        assert plan.state_of(before).over or plan.state_of(before) is RunTargetState.QUEUED
                if plan.finished < pace.canary:
                    assert plan.in_flight + plan.finished <= pace.canary
            case "end":
                under_way = plan.in_flight_targets() + plan.queued_targets()
                if under_way:
                    target = under_way[number % len(under_way)]
                    state = data.draw(st.sampled_from(OVER))
                    digest = data.draw(st.sampled_from(["", "a", "b"]))
                    assert plan.end(target, state, "", digest)
                    assert not plan.end(target, RunTargetState.OK)
                    if pace.abort_count and plan.failures >= pace.abort_count > failures_before:
                        assert plan.state.stopped
            case "queue":
                if under_way := plan.in_flight_targets():
                    room, held = plan.room, plan.in_flight
                    plan.queue(under_way[number % len(under_way)])
                    assert plan.in_flight == held - 1
                    assert plan.room >= room
            case "pause":
                plan.pause()
            case "resume":
                plan.resume()
            case "cancel":
                plan.cancel()
            case "expire":
                plan.expire()
            case "die":  # a new owner reads what was stored
                stored.take(plan.take_step())
                plan = stored.loaded(pace, late)
            case "join":
                targets += number % 5 if plan.open else 0
                plan.join(number % 5)
        assert sum(plan.counts.values()) == targets
        if plan.state.stopped:
            assert not plan.counts[RunTargetState.WAITING]
        over = plan.finished + plan.counts[RunTargetState.SKIPPED] + plan.counts[RunTargetState.NOT_STARTED]
        assert plan.ended == (over == targets and not plan.open)
        assert not plan.open or (late and not plan.state.stopped)
        assert not plan.ended or plan.state.stopped
        if number % 3 == 0:
            stored.take(plan.take_step())
            stored.check()
            assert plan.take_step() is None
    stored.take(plan.take_step())
    stored.check()


@settings(max_examples=100, deadline=None)
@given(pace=paces, targets=st.integers(1, 60))
def test_a_run_whose_targets_end_well_is_done(pace: Pace, targets: int) -> None:
    plan = plan_of(pace, targets)
    for _ in range(2 * targets):
        plan.start(targets)
        for target in plan.in_flight_targets()[:1]:
            plan.end(target, RunTargetState.OK)
    assert (plan.state, plan.ended, plan.counts[RunTargetState.OK]) == (RunState.DONE, True, targets)


def test_a_run_that_agents_join_goes_on_until_it_expires_and_is_done_if_nothing_was_left() -> None:
    plan = plan_of(Pace(concurrency=2), 0, late=True)
    assert (plan.ended, plan.start(10)) == (False, [])
    plan.join(3)
    assert plan.start(10) == [0, 1]
    for target in (0, 1):
        plan.end(target, RunTargetState.OK)
    assert plan.start(10) == [2]
    plan.expire()  # the last one is under way
    assert (plan.open, plan.state.value, plan.ended) == (False, "running", False)
    plan.join(1)
    plan.expire()
    plan.end(2, RunTargetState.TIMEOUT)
    assert (plan.state.value, plan.ended, sum(plan.counts.values())) == ("done", True, 3)
    left = plan_of(Pace(concurrency=1), 2, late=True)
    left.start(10)
    left.expire()
    assert (left.state.value, left.counts[RunTargetState.NOT_STARTED]) == ("expired", 1)


def test_a_ramp_doubles_with_each_round() -> None:
    plan = plan_of(Pace(concurrency=5, ramp=1), 30)
    rounds = []
    while not plan.ended:
        started = plan.start(100)
        rounds.append(len(started))
        for target in started:
            plan.end(target, RunTargetState.OK)
    assert rounds == [1, 2, 4, 5, 5, 5, 5, 3]


def test_a_batch_begins_when_the_one_before_has_ended() -> None:
    plan = plan_of(Pace(concurrency=50, canary=1, batches=(3, 5)), 9)
    rounds = []
    while not plan.ended:
        rounds.append(plan.start(100))
        plan.end(rounds[-1][0], RunTargetState.OK)
        assert not (plan.start(100) and len(rounds) > 1)
        for target in plan.in_flight_targets():
            plan.end(target, RunTargetState.OK)
    assert rounds == [[0], [3, 4], [5, 6, 7, 8]]  # after the canary, the rest of its batch started


def test_the_canary_ends_before_the_others_start_and_its_failure_aborts() -> None:
    plan = plan_of(Pace(concurrency=50, canary=3), 30)
    assert plan.start(100) == [0, 1, 2]
    plan.end(0, RunTargetState.OK)
    plan.end(1, RunTargetState.SKIPPED)
    assert plan.start(100) == [3]  # in place of the one that was skipped
    plan.end(2, RunTargetState.OK)
    assert plan.start(100) == []
    plan.end(3, RunTargetState.TIMEOUT)
    assert (plan.state, plan.ended, plan.counts[RunTargetState.NOT_STARTED]) == (RunState.ABORTED, True, 26)
    assert "canary" in plan.reason


def test_a_share_of_failures_aborts_once_enough_have_ended() -> None:
    plan = plan_of(Pace(concurrency=50, abort_share=0.2, abort_minimum=10), 100)
    started = plan.start(100)
    for target in started[:4]:
        plan.end(target, RunTargetState.FAILED)
    for target in started[4:9]:
        plan.end(target, RunTargetState.OK)
    assert plan.state is RunState.RUNNING
    plan.end(started[9], RunTargetState.FAILED)
    assert (plan.state.value, plan.in_flight) == ("aborted", 40)
    assert plan.reason == "5 of 10 targets have failed: the limit is 20 %"
    for target in started[10:]:
        plan.end(target, RunTargetState.OK)
    assert plan.ended


def test_groups_are_bounded_and_count_every_target() -> None:
    plan = plan_of(Pace(concurrency=10_000), 3_000)
    for target in plan.start(3_000):
        plan.end(target, RunTargetState.FAILED, f"code-{target}", f"{target}")
    step = plan.take_step()
    assert step is not None
    assert sum(group.count for group in step.groups) == 3_000
    assert len(step.groups) <= 2 * GROUPS + 1
    assert max(len(group.first) for group in step.groups) == FIRST
