"""The steps of commands that this node has stored in Redis lately, so that it can say them again after a failover.

A replica that becomes the primary lacks what the old one had not sent to it yet: the last moment. `Commands` and the
recorder add each step that changes a record, once Redis has answered it; `Recovery` reads them when it finds another
server. Only steps that may be repeated are kept. Bounded by time, number and bytes; it does no I/O.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from fairlead.fleet.command_record import StoredEnd
from fairlead.fleet.schema import TargetState
from fairlead.store.reply import Arg

KEPT: Final = 30.0
"""Seconds, not counting those in which a server is away or not compared yet. Replicas are usually some milliseconds
behind; one that is much further behind should not be promoted."""
COUNT: Final = 50_000
"""Steps without results: some 15 MB, and 30 s at 1,600 a second."""
BYTES: Final = 16 << 20
"""Bytes of results that are kept to be said again. With more than that in flight the oldest are given up: a command
whose results are then missing ends as `results_gap`, or keeps its end and is marked as truncated."""
OVERHEAD: Final = 256
"""Bytes of a step beside its results."""


class AcceptedStep(msgspec.Struct, frozen=True, gc=False):
    """A command was accepted. `terms` and `about` are those of its record."""

    at: float
    command: str
    agent: str
    created: int
    retention: int
    terms: tuple[Arg, ...]
    about: bytes


class SentStep(msgspec.Struct, frozen=True, gc=False):
    """A command was marked as sent to the agent with this memory, for the time number `attempt`."""

    at: float
    command: str
    agent: str
    gen: int
    memory: str
    attempt: int


class EndedStep(msgspec.Struct, frozen=True, gc=False):
    """A node ended a command."""

    at: float
    command: str
    agent: str
    state: TargetState
    ending: StoredEnd


class KeyStep(msgspec.Struct, frozen=True, gc=False):
    """An Idempotency-Key was bound to a body and a command, which is `value`."""

    at: float
    key: str
    """In Redis."""
    value: str


class CancelStep(msgspec.Struct, frozen=True, gc=False):
    """The end of a command that its agent has was asked for."""

    at: float
    command: str
    agent: str


Step = KeyStep | AcceptedStep | SentStep | EndedStep | CancelStep


class StoredStep(msgspec.Struct, frozen=True, gc=False):
    """What the agent with this memory sent was stored; `steps` are those of the append."""

    at: float
    command: str
    agent: str
    memory: str
    steps: Sequence[Arg]
    size: int


class RecentSteps:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.settled: Callable[[], bool] = lambda: True
        """Whether Redis has what was told. Otherwise nothing is forgotten because of its age: a Redis may be away for
        longer than that, while the other primaries of a Cluster, or the one that took over, get new steps."""
        self._steps: deque[Step] = deque()
        self._stored: deque[StoredStep] = deque()
        self._held = 0
        """The bytes of results that are kept."""

    def __iter__(self) -> Iterator[Step]:
        """The steps without results, oldest first."""
        return iter(tuple(self._steps))

    @property
    def stored(self) -> tuple[StoredStep, ...]:
        """The stored results, oldest first."""
        return tuple(self._stored)

    def accepted(
        self, command: str, agent: str, created: int, retention: int, terms: tuple[Arg, ...], about: bytes
    ) -> None:
        self._add(AcceptedStep(self._clock(), command, agent, created, retention, terms, about))

    def key_bound(self, key: str, value: str) -> None:
        self._add(KeyStep(self._clock(), key, value))

    def sent(self, command: str, agent: str, gen: int, memory: str, attempt: int) -> None:
        self._add(SentStep(self._clock(), command, agent, gen, memory, attempt))

    def ended(self, command: str, agent: str, state: TargetState, ending: StoredEnd) -> None:
        self._add(EndedStep(self._clock(), command, agent, state, ending))

    def cancel_asked(self, command: str, agent: str) -> None:
        self._add(CancelStep(self._clock(), command, agent))

    def _add(self, step: Step) -> None:
        steps, forgotten = self._steps, step.at - KEPT
        if steps and steps[0].at < forgotten and self.settled():
            while steps and steps[0].at < forgotten:
                steps.popleft()
        elif len(steps) >= COUNT:
            steps.popleft()
        steps.append(step)

    def results_stored(self, command: str, agent: str, memory: str, steps: Sequence[Arg]) -> None:
        now, stored = self._clock(), self._stored
        size = OVERHEAD + sum([len(arg) for arg in steps if isinstance(arg, bytes)])  # an end has a payload, too
        outdated = bool(stored) and stored[0].at < now - KEPT and self.settled()
        while stored and (self._held + size > BYTES or (outdated and stored[0].at < now - KEPT)):
            self._held -= stored.popleft().size
        self._held += size
        stored.append(StoredStep(now, command, agent, memory, steps, size))
