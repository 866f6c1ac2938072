"""When each step of one command happened on this node, and what a session's commands took.

Stamps are taken always, since they cost what a clock costs: the latencies of a session and of the node are made of
them, and so are the spans of a command that is kept for its trace only when it turns out to be slow or failed. Stamps
are nanoseconds of this machine's wall clock, as spans want them; nothing decides by those of another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairlead.telemetry.decaying_histogram import new_histogram, observe

STAGES: Final = ("deliver", "ack", "first_byte", "run", "store")
"""From the doorbell to the socket; from there to the ack, to the first result and to the end; from the end to Redis."""


@dataclass(frozen=True, slots=True)
class CommandOrigin:
    """What a command's record says of its beginning. `began` is the API's clock (ns), 0 when it was not told."""

    method: str
    traceparent: str
    began: int
    created: int
    """Redis TIME in ms."""


class CommandTiming:
    """One command on one link; a stamp of 0 stands for what did not happen."""

    __slots__ = (
        "acked", "attempt", "code", "ended", "first", "heard", "origin", "resumed", "rung", "span", "stored", "waited",
        "written",
    )  # fmt: skip

    def __init__(self, rung: int, heard: int) -> None:
        self.rung = rung
        """By the clock of the node that rang."""
        self.heard = heard
        self.waited = False
        """It was there before the link, and was delivered as such."""
        self.written = 0
        self.acked = 0
        self.first = 0
        self.ended = 0
        self.stored = 0
        self.attempt = 0
        self.resumed = False
        """It was running when this link took it up, so nothing can be said of how long it took."""
        self.code = ""
        """Of the error that the agent ended it with."""
        self.origin: CommandOrigin | None = None
        """None for a command that was taken up from another link, until it is asked for."""
        self.span = 0
        """The id under which the agent knows its stay there, when it was told one."""

    def stages(self) -> tuple[float | None, ...]:
        """Seconds of each of STAGES, None where one of its two stamps is missing."""
        written, ended = 0 if self.resumed else self.written, self.ended
        return (
            _between(self.heard, written),
            _between(written, self.acked),
            _between(written, self.first),
            _between(written, ended),
            _between(ended, self.stored),
        )


def _between(begin: int, end: int) -> float | None:
    if not begin or not end:
        return None
    # A wall clock may be set back; time never is.
    return (end - begin) / 1e9 if end > begin else 0.0


class CommandStats:
    """The commands of one session: made with its first one."""

    __slots__ = ("commands", "failed", "windows")

    def __init__(self) -> None:
        self.commands = 0
        """That ended on this link."""
        self.failed = 0
        self.windows: list[bytearray | None] = [None] * len(STAGES)

    def add(self, stages: tuple[float | None, ...], failed: bool) -> None:
        self.commands += 1
        self.failed += failed
        windows = self.windows
        for i, seconds in enumerate(stages):
            if seconds is not None:
                counts = windows[i]
                if counts is None:
                    counts = windows[i] = new_histogram()
                observe(counts, seconds)
