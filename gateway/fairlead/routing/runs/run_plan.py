"""The decisions of one run: which target starts next, when the run stops, and what every moment adds up to.

The driver of a run owns one, and stores what it hands out. It is pure: it does no I/O and reads no clock. Everything it
decides follows from the states of the targets, so that a new owner, which reads these from Redis, goes on as the old
one would have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from fairlead.fleet.runs.run_record import (
    LETTERS,
    STATES,
    Pace,
    RunEnd,
    RunGroup,
    RunRow,
    RunState,
    RunStep,
    RunTargetState,
)

GROUPS: Final = 200
"""Groups of targets that are told apart by their output. More would help nobody to see what differs; what comes
later is counted without its output."""
CODES: Final = 2 * GROUPS
"""Groups in all: agents choose the codes of their errors."""
FIRST: Final = 3
"""Targets that a group names."""
WAITING, STARTED = LETTERS[RunTargetState.WAITING], LETTERS[RunTargetState.STARTED]
QUEUED = LETTERS[RunTargetState.QUEUED]
_NOT_OVER = tuple(state for state in RunTargetState if not state.over)
_FAILURES = tuple(state for state in RunTargetState if state.failure)
_NEVER_RUN = (RunTargetState.SKIPPED, RunTargetState.NOT_STARTED)


class RunPlan:
    def __init__(
        self,
        pace: Pace,
        states: bytearray,
        state: RunState = RunState.RUNNING,
        reason: str = "",
        groups: list[RunGroup] | None = None,
        *,
        late: bool = False,
    ) -> None:
        """`states` has the letter of each target's state. With `late`, further targets join until `expire`."""
        self.pace = pace
        self.state = state
        self.reason = reason
        self._states = states
        self._next = 0
        self.counts = {state: states.count(letter) for letter, state in STATES.items()}
        self._groups = {(group.state, group.code, group.digest): group for group in groups or []}
        self._started: list[int] = []
        self._queued: list[int] = []
        self._ends: list[RunEnd] = []
        self._changed_groups: dict[tuple[RunTargetState, str, str], RunGroup] = {}
        self._joined = 0
        self._late = late
        self._open = late and not state.stopped
        self._drops_waiting = False
        self._changed = False

    @property
    def open(self) -> bool:
        """Whether further targets may join."""
        return self._open

    @property
    def ended(self) -> bool:
        """Whether every target is in a terminal state, and no other joins."""
        return not self._open and not self._sum(_NOT_OVER)

    @property
    def in_flight(self) -> int:
        """Targets that hold a place. Those that are queued hold none, as nobody knows when their agents come back."""
        return self.counts[RunTargetState.STARTED]

    @property
    def finished(self) -> int:
        """Targets that have ended after they were started, without those that were skipped."""
        return len(self._states) - self._sum(_NOT_OVER) - self._sum(_NEVER_RUN)

    @property
    def failures(self) -> int:
        return self._sum(_FAILURES)

    @property
    def width(self) -> int:
        """How many targets may be under way now."""
        pace, finished = self.pace, self.finished
        if finished < pace.canary:
            return min(pace.concurrency, pace.canary - finished)
        if not pace.ramp:
            return pace.concurrency
        # Rounds of ramp, 2 × ramp, 4 × ramp … targets: after the k-th, ramp × (2^k - 1) have ended.
        rounds = ((finished - pace.canary) // pace.ramp + 1).bit_length() - 1
        return min(pace.concurrency, pace.ramp << min(rounds, 32))

    @property
    def room(self) -> int:
        """How many targets may start now."""
        waiting = self.counts[RunTargetState.WAITING]
        # Targets start in order, so all that have ended, or are queued, are of this batch or of those before it.
        over = len(self._states) - waiting - self.in_flight
        at = bisect_right(self.pace.batches, over)
        batch_ends = self.pace.batches[at] if at < len(self.pace.batches) else len(self._states)
        return min(self.width - self.in_flight, waiting, batch_ends - over - self.in_flight)

    def state_of(self, target: int) -> RunTargetState:
        return STATES[self._states[target]]

    def in_flight_targets(self) -> list[int]:
        return [target for target, letter in enumerate(self._states) if letter == STARTED]

    def queued_targets(self) -> list[int]:
        return [target for target, letter in enumerate(self._states) if letter == QUEUED]

    def join(self, count: int) -> None:
        """So many further targets wait, behind all others."""
        if self._open and count:
            self._states += bytes((WAITING,)) * count
            self.counts[RunTargetState.WAITING] += count
            self._joined += count
            self._changed = True

    def start(self, most: int) -> list[int]:
        """Start up to `most` targets, as many as the pace allows now; returns them."""
        if self.state is not RunState.RUNNING:
            return []
        room = min(most, self.room)
        started: list[int] = []
        while len(started) < room:
            target = self._states.find(WAITING, self._next)
            self._set(target, RunTargetState.STARTED)
            self._next = target + 1
            started.append(target)
        self._started += started
        self._changed |= bool(started)
        return started

    def queue(self, target: int) -> None:
        """A target that was started waits for its agent to come back."""
        if self._states[target] == STARTED:
            self._set(target, RunTargetState.QUEUED)
            self._queued.append(target)
            self._changed = True

    def end(self, target: int, state: RunTargetState, code: str = "", digest: str = "") -> bool:
        """A target that was started has ended. Returns False if it had ended before."""
        if not state.over or self._states[target] not in (STARTED, QUEUED):
            return False
        was_canary = self.pace.canary > 0 and self.finished < self.pace.canary
        self._set(target, state)
        self._ends.append(RunEnd(target, state, code, digest))
        self._add_to_group(target, state, code, digest)
        self._changed = True
        if state.failure and not self.state.stopped and (reason := self._why_to_abort(state, was_canary)):
            self._stop(RunState.ABORTED, reason)
        self._finish()
        return True

    def pause(self) -> None:
        if self.state is RunState.RUNNING:
            self.state, self._changed = RunState.PAUSED, True

    def resume(self) -> None:
        if self.state is RunState.PAUSED:
            self.state, self._changed = RunState.RUNNING, True

    def cancel(self) -> None:
        """Start nothing more. The targets under way are still to be ended by whoever drives the run."""
        if not self.ended:
            self._stop(RunState.CANCELLED, self.reason)
            self._finish()

    def expire(self) -> None:
        """Start nothing more, for the time of the whole run is over."""
        if self._late and not self.counts[RunTargetState.WAITING]:
            if self._open:  # nothing is left undone, and nobody joins any more
                self._open, self._changed = False, True
                self._finish()
        elif not self.ended and not self.state.stopped:
            self._stop(RunState.EXPIRED, "the deadline of the whole run has passed")
            self._finish()

    def take_step(self, done_wish: str = "") -> RunStep | None:
        """What has changed since the last call, to be stored as one step; None if that is nothing."""
        if not self._changed and not done_wish:
            return None
        step = self.renewal(done_wish)
        self._started, self._queued, self._ends, self._changed_groups = [], [], [], {}
        self._joined = 0
        self._drops_waiting = self._changed = False
        return step

    def renewal(self, done_wish: str = "") -> RunStep:
        """A step that stores what is so now."""
        # Copies, for a step may be sent again after more has changed.
        counts = {state: count for state, count in self.counts.items() if count}
        groups = [RunGroup(*key, one.count, list(one.first)) for key, one in self._changed_groups.items()]
        return RunStep(
            self._joined, tuple(self._started), tuple(self._queued), tuple(self._ends), groups, self.state, counts,
            self.reason, self._drops_waiting, self.ended, done_wish,
        )  # fmt: skip

    def _set(self, target: int, state: RunTargetState) -> None:
        self.counts[STATES[self._states[target]]] -= 1
        self.counts[state] += 1
        self._states[target] = LETTERS[state]

    def _sum(self, states: tuple[RunTargetState, ...]) -> int:
        """The targets that are in one of these states. It is asked for at every end."""
        counts, found = self.counts, 0
        for state in states:
            found += counts[state]
        return found

    def _finish(self) -> None:
        if self.ended and not self.state.stopped:
            self.state = RunState.DONE

    def _stop(self, state: RunState, reason: str) -> None:
        self.state, self.reason, self._changed = state, reason, True
        self._open = False
        if waiting := self.counts[RunTargetState.WAITING]:
            self.counts[RunTargetState.WAITING] = 0
            self.counts[RunTargetState.NOT_STARTED] += waiting
            self._states[:] = self._states.replace(bytes((WAITING,)), bytes((LETTERS[RunTargetState.NOT_STARTED],)))
            self._drops_waiting = True

    def _why_to_abort(self, state: RunTargetState, was_canary: bool) -> str:
        pace, failures, finished = self.pace, self.failures, self.finished
        if was_canary:
            first = f"one of the first {pace.canary} targets" if pace.canary > 1 else "the first target"
            return f"{first}, the canary, ended as {state}"
        if pace.abort_count and failures >= pace.abort_count:
            have = "target has" if failures == 1 else "targets have"
            return f"{failures} {have} failed: the limit is {pace.abort_count}"
        if finished >= pace.abort_minimum and failures > pace.abort_share * finished:
            return f"{failures} of {finished} targets have failed: the limit is {pace.abort_share * 100:.4g} %"
        return ""

    def _add_to_group(self, target: int, state: RunTargetState, code: str, digest: str) -> None:
        key = state, code, digest
        if key not in self._groups:
            if len(self._groups) >= GROUPS:
                key = state, code, ""
            if key not in self._groups and len(self._groups) >= CODES:
                key = state, "", ""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = RunGroup(*key, 0, [])
        group.count += 1
        if len(group.first) < FIRST:
            group.first.append(target)
        self._changed_groups[key] = group


def lost_step(row: RunRow, known: Sequence[RunGroup]) -> RunStep:
    """The last step of a run of which Redis has lost parts: what has ended stays, what was under way is given up, since
    nobody knows which targets that were, and nothing more starts. `known` are its groups."""
    counts = dict(row.counts)
    under_way = sum(counts.pop(state, 0) for state in (RunTargetState.STARTED, RunTargetState.QUEUED))
    waiting = counts.pop(RunTargetState.WAITING, 0)
    failed, never = RunTargetState.FAILED, RunTargetState.NOT_STARTED
    for state, count in ((failed, under_way), (never, waiting)):
        if count:
            counts[state] = counts.get(state, 0) + count
    lost = RunGroup(failed, "record_lost", "", 0, [])
    lost = next((one for one in known if (one.state, one.code, one.digest) == (lost.state, lost.code, "")), lost)
    groups = [RunGroup(failed, lost.code, "", lost.count + under_way, lost.first)] if under_way else []
    return RunStep(
        0, (), (), (), groups, row.state if row.state.stopped else RunState.ABORTED, counts,
        "Redis has lost parts of this run: commands that were under way end by themselves, and no more start", False,
        True, row.wish,
    )  # fmt: skip
