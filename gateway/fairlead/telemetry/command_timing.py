"""When each step of one command happened on this node, and what a session's commands took.

Sessions and the telemetry recorder use it. Timestamps are always taken, because each costs only one read of the clock.
The latencies of a session and of the node are computed from them, and so are the spans of a command whose trace is kept
only because it was slow or failed. Timestamps are nanoseconds of this machine's wall clock, as spans require; no
decision depends on timestamps of another machine.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead.telemetry.decaying_histogram import new_histogram, observe, size_of

STAGES: Final = ("deliver", "ack", "first_byte", "run", "store")
"""The stages: from the doorbell to the write to the socket; from that write to the ack, to the first result and to the
end; and from the end until it is stored in Redis."""

FEW: Final = 16
"""Commands of a link whose durations are kept one by one."""
NONE: Final = 255
"""In place of a bucket."""
_NONE = bytes((NONE,))


class CommandOrigin(msgspec.Struct, frozen=True):
    """What the record of a command says about its origin. `began` is the API node's clock in ns, 0 if unknown."""

    method: str
    traceparent: str
    began: int
    created: int
    """When the record was created: Redis TIME in ms."""


class CommandTiming:
    """The timestamps of one command on one link. A timestamp of 0 means that the step has not happened."""

    __slots__ = (
        "acked", "attempt", "code", "command", "ended", "first", "gives_way", "offered", "origin", "received",
        "resumed", "rung", "span", "stored", "written",
    )  # fmt: skip

    def __init__(self, rung: int, received: int) -> None:
        self.command = ""
        """Its id, from when its messages are stamped."""
        self.rung = rung
        """When the doorbell was sent, by the clock of the node that sent it."""
        self.received = received
        """When this node received the doorbell."""
        self.gives_way = False
        """True if the command existed before the link did, or is of the lane `bulk`."""
        self.offered = False
        """True if it was sent as its doorbell has brought it."""
        self.written = 0
        self.acked = 0
        self.first = 0
        self.ended = 0
        self.stored = 0
        self.attempt = 0
        self.resumed = False
        """True if the command was already running when this link took it over, so its duration is unknown."""
        self.code = ""
        """The code of the error with which the agent ended the command."""
        self.origin: CommandOrigin | None = None
        """None for a command that was taken over from another link, until its record has been read."""
        self.span = 0
        """The id of the agent's span, if one was sent to the agent."""

    def stages(self) -> tuple[float | None, ...]:
        """The seconds of each of STAGES, or None where one of its two timestamps is missing."""
        written, ended = 0 if self.resumed else self.written, self.ended
        return (
            _between(self.received, written),
            _between(written, self.acked),
            _between(written, self.first),
            _between(written, ended),
            _between(ended, self.stored),
        )


def _between(begin: int, end: int) -> float | None:
    if not begin or not end:
        return None
    # A wall clock may be set back, but a duration is never negative.
    return (end - begin) / 1e9 if end > begin else 0.0


class CommandStats:
    """Statistics of the commands of one session. A session creates them with its first command.

    Most links have a few commands in their life, of runs for instance: these take a byte for each stage, and histograms
    of all stages, which take some 700 bytes, are made of them once they are more than FEW.
    """

    __slots__ = ("_few", "_many", "commands", "failed")

    def __init__(self) -> None:
        self.commands = 0
        """The number of commands that ended on this link."""
        self.failed = 0
        self._few = b""
        """The bucket of each duration, command by command; NONE where none is known."""
        self._many: list[bytearray | None] | None = None

    def add(self, stages: tuple[float | None, ...], failed: bool) -> None:
        self.commands += 1
        self.failed += failed
        histograms = self._many
        if histograms is None:
            self._few += bytes([NONE if seconds is None else size_of(seconds) for seconds in stages])
            if len(self._few) > FEW * len(STAGES):
                self._many, self._few = [self.histogram(stage) for stage in range(len(STAGES))], b""
            return
        for i, seconds in enumerate(stages):
            if seconds is not None:
                counts = histograms[i]
                if counts is None:
                    counts = histograms[i] = new_histogram()
                observe(counts, seconds)

    def histogram(self, stage: int) -> bytearray | None:
        """The recent durations of one of STAGES, by its place; None where none is known."""
        if self._many is not None:
            return self._many[stage]
        sizes = self._few[stage :: len(STAGES)].replace(_NONE, b"")
        if not sizes:
            return None
        counts = new_histogram()
        for size in sizes:
            counts[size] += 1
        return counts
