"""The steps of commands that this node has stored in Redis lately, so that it can say them again after a failover.

A replica that becomes the primary lacks what the old one had not sent to it yet: the last moment. `Commands` and the
recorder add each step that changes a record, once Redis has answered it; `RepeatedSteps` reads them when another server
is found. Only steps that may be repeated are kept. They are packed, and TOGETHER or more of them become one compressed
piece: a step that nobody reads again, as nearly all are, then takes a tenth of what its objects would. Bounded by time
and bytes; it does no I/O.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from fairlead.fleet.command_record import StoredEnd
from fairlead.fleet.schema import TargetState
from fairlead.store.reply import Arg

KEPT: Final = 30.0
"""Seconds, not counting those in which a server is away or not compared yet. Replicas are usually some milliseconds
behind; one that is much further behind should not be promoted."""
STEP_BYTES: Final = 12 << 20
"""Bytes of steps without results: 30 s at some 4,000 commands a second."""
BYTES: Final = 16 << 20
"""Bytes of results that are kept to be said again. With more than that in flight the oldest are given up: a command
whose results are then missing ends as `results_gap`, or keeps its end and is marked as truncated."""
OVERHEAD: Final = 48
"""Bytes of a packed step, or of a piece of them, beside its octets."""
TOGETHER: Final = 32
"""From so many steps on they become a piece. They are much alike but for their ids: together, those of a run take a
fifth of their bytes. Compressing them takes some 0.7 µs for each."""
COMPRESSED_FROM, COMPRESSED_TO = 1 << 10, 16 << 10
"""Bytes of a piece that is compressed: less gains little, and more, which is mostly output, takes too long."""
_COMPRESSED = b"\x78"
"""The first octet of what zlib has compressed, which no array of MessagePack begins with."""


class AcceptedStep(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A command was accepted. `terms`, `about` and `results_limit` are those of its record."""

    command: str
    agent: str
    created: int
    retention: int
    terms: tuple[Any, ...]
    about: bytes
    results_limit: int | None = None


class SentStep(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A command was marked as sent to the agent with this memory, for the time number `attempt`."""

    command: str
    agent: str
    gen: int
    memory: str
    attempt: int


class EndedStep(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A node ended a command."""

    command: str
    agent: str
    state: TargetState
    ending: StoredEnd


class KeyStep(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """An Idempotency-Key was bound to a body and a command, which is `value`."""

    key: str
    """In Redis."""
    value: str


class CancelStep(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The end of a command that its agent has was asked for."""

    command: str
    agent: str


Step = KeyStep | AcceptedStep | SentStep | EndedStep | CancelStep


class StoredStep(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """What the agent with this memory sent was stored; `steps` are those of the append."""

    command: str
    agent: str
    memory: str
    steps: Sequence[Any]


EndStep = StoredStep | EndedStep
"""A step by which a node knows how a command has ended, or what came before its end."""

_pack = msgspec.msgpack.Encoder().encode
_unpack_steps = msgspec.msgpack.Decoder(list[Step]).decode
_unpack_stored = msgspec.msgpack.Decoder(list[StoredStep]).decode
pack_end: Callable[[EndStep], bytes] = _pack
unpack_end: Callable[[bytes], EndStep] = msgspec.msgpack.Decoder(EndStep).decode


def _join(packed: Sequence[bytes]) -> bytes:
    """A piece with these packed steps, which is their MessagePack array, compressed if that is worth it."""
    array = b"\xdc" + len(packed).to_bytes(2) + b"".join(packed)
    return zlib.compress(array, 1) if COMPRESSED_FROM <= len(array) <= COMPRESSED_TO else array


def _array(piece: bytes) -> bytes:
    return zlib.decompress(piece) if piece[:1] == _COMPRESSED else piece


class _PackedSteps:
    """Pieces of packed steps, the oldest first, and the seconds in which they were added."""

    __slots__ = ("_loose", "_loose_second", "_pieces", "_seconds", "size")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._seconds: deque[list[int]] = deque()
        """Each second in which pieces were added, and how many of them are left."""
        self._loose: list[bytes] = []
        """The newest steps, all of one second, which become a piece together."""
        self._loose_second = 0
        self.size = 0
        """Bytes that they take."""

    def __len__(self) -> int:
        return len(self._pieces) + len(self._loose)

    def __iter__(self) -> Iterator[bytes]:
        """The MessagePack arrays of the steps."""
        self._tie()
        return map(_array, tuple(self._pieces))

    def add(self, packed: Sequence[bytes], now: float) -> None:
        """Add steps that are packed, at least one."""
        if self._loose_second != (second := int(now)):
            self._tie()
            self._loose_second = second
        self._loose += packed
        self.size += sum(map(len, packed)) + OVERHEAD * len(packed)
        if len(self._loose) >= TOGETHER or len(packed[0]) > COMPRESSED_FROM:
            self._tie()

    def _tie(self) -> None:
        """Make a piece of the loose steps."""
        loose, second, seconds = self._loose, self._loose_second, self._seconds
        if not loose:
            return
        piece = _join(loose)
        self.size += len(piece) + OVERHEAD - sum(map(len, loose)) - OVERHEAD * len(loose)
        self._loose = []
        if not seconds or seconds[-1][0] != second:
            seconds.append([second, 0])
        seconds[-1][1] += 1
        self._pieces.append(piece)

    def has_before(self, moment: float) -> bool:
        """Whether there are steps of a second that was over at `moment`."""
        if self._loose and self._loose_second + 1 <= moment:
            self._tie()
        return bool(self._seconds) and self._seconds[0][0] + 1 <= moment

    def forget_before(self, moment: float) -> None:
        """Forget the steps of all seconds that were over at `moment`."""
        while self.has_before(moment):
            for _ in range(self._seconds[0][1]):
                self.forget_oldest()

    def forget_oldest(self) -> None:
        """Forget the oldest piece."""
        if not self._pieces:
            self._tie()
        self.size -= len(self._pieces.popleft()) + OVERHEAD
        self._seconds[0][1] -= 1
        if not self._seconds[0][1]:
            self._seconds.popleft()


class RecentSteps:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.settled: Callable[[], bool] = lambda: True
        """Whether Redis has what was told. Otherwise nothing is forgotten because of its age: a Redis may be away for
        longer than that, while the other primaries of a Cluster, or the one that took over, get new steps."""
        self._steps = _PackedSteps()
        self._stored = _PackedSteps()
        """The steps with results."""

    def __bool__(self) -> bool:
        """Whether any step is kept."""
        return bool(self._steps) or bool(self._stored)

    @property
    def size(self) -> int:
        """Bytes of all steps that are kept."""
        return self._steps.size + self._stored.size

    def __iter__(self) -> Iterator[Step]:
        """The steps without results, oldest first."""
        return chain.from_iterable(map(_unpack_steps, self._steps))

    @property
    def stored(self) -> Iterator[StoredStep]:
        """The stored results, oldest first."""
        return chain.from_iterable(map(_unpack_stored, self._stored))

    def accepted(
        self, command: str, agent: str, created: int, retention: int, terms: tuple[Arg, ...], about: bytes,
        results_limit: int | None = None,
    ) -> None:  # fmt: skip
        self._add(AcceptedStep(command, agent, created, retention, terms, about, results_limit))

    def accepted_together(self, steps: Sequence[AcceptedStep]) -> None:
        """As `accepted`, for commands that were accepted in one call."""
        self._keep(self._steps, [_pack(step) for step in steps], STEP_BYTES)

    def key_bound(self, key: str, value: str) -> None:
        self._add(KeyStep(key, value))

    def sent(self, command: str, agent: str, gen: int, memory: str, attempt: int) -> None:
        self._add(SentStep(command, agent, gen, memory, attempt))

    def ended(self, command: str, agent: str, state: TargetState, ending: StoredEnd) -> None:
        self._add(EndedStep(command, agent, state, ending))

    def cancel_asked(self, command: str, agent: str) -> None:
        self._add(CancelStep(command, agent))

    def _add(self, step: Step) -> None:
        self._keep(self._steps, (_pack(step),), STEP_BYTES)

    def results_stored(self, command: str, agent: str, memory: str, steps: Sequence[Arg]) -> None:
        self._keep(self._stored, (_pack(StoredStep(command, agent, memory, steps)),), BYTES)

    def stored_together(self, steps: Sequence[StoredStep]) -> None:
        """As `results_stored`, for what was stored in one call."""
        self._keep(self._stored, [_pack(step) for step in steps], BYTES)

    def _keep(self, steps: _PackedSteps, packed: Sequence[bytes], most: int) -> None:
        now = self._clock()
        if steps.has_before(now - KEPT) and self.settled():
            steps.forget_before(now - KEPT)
        size = sum(map(len, packed)) + OVERHEAD * len(packed)
        while steps.size + size > most and steps:
            steps.forget_oldest()
        steps.add(packed, now)
