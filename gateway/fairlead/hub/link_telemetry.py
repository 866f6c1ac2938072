"""What one session keeps for telemetry: the timestamps of its opening and of its commands, and the durations of its
commands and round trips.

The session and the telemetry recorder (in `routing`) write the timestamps, and the recorder makes metrics and spans of
them. Like `PendingMessages`, from which it inherits, it is a base class of `Session` and no object of its own, so that
it costs an idle link nothing but its slots.
"""

from __future__ import annotations

import struct
import time

from fairlead.hub.pending_messages import PendingMessages
from fairlead.hub.session_context import SessionContext
from fairlead.telemetry.command_timing import CommandStats, CommandTiming
from fairlead.telemetry.decaying_histogram import new_histogram, observe, pack_histogram, unpack_histogram
from fairlead.telemetry.link_opening import WELCOMED, pack_opening, unpack_opening
from fairlead.wire.messages import Ack, Chunk, End, FromAgent

MAX_RTT_MS = 1e7
"""Nearly three hours. A greater number is not a round trip but an invention of the agent. NaN and infinity fail the
comparison too."""
_EXPORTED = b""
_RTT = struct.Struct("<d")


class LinkTelemetry(PendingMessages):
    __slots__ = ("_opening", "_round_trips", "tally", "timings")

    def __init__(self, context: SessionContext, opening: list[int] | None) -> None:
        super().__init__(context)
        self._opening: list[int] | bytes | None = opening
        """The timestamps of the link's opening: a list until welcome, then packed, empty once they are taken for
        export, and None if nobody needs them."""
        self._round_trips: bytes | None = None
        """The last round trip that the agent reported, and the histogram of all, packed: most of what telemetry costs
        an idle session."""
        self.tally: CommandStats | None = None
        """The durations of the commands that ended on this link; created with the first one."""
        self.timings: CommandTiming | dict[str, CommandTiming] | None = None
        """The timestamps of the open commands that were sent, or taken over, on this link. Most links have one at a
        time, for which a dict takes more than the timestamps."""

    # -- the opening of the link -------------------------------------------------------------------

    def stamp_opening(self, step: int) -> None:
        """Record that `step`, one of those that `telemetry.link_opening` lists, happens now."""
        if isinstance(self._opening, list):
            self._opening[step] = time.time_ns()

    def finish_opening(self, keep: bool) -> list[int] | None:
        """Record that welcome was just sent. Returns all timestamps of the opening, or None if none were taken. With
        `keep`, they can be taken for export later."""
        stamps = self._opening
        if not isinstance(stamps, list):
            return None
        stamps[WELCOMED] = time.time_ns()
        self._opening = pack_opening(stamps) if keep else None
        return stamps

    def take_opening(self) -> list[int] | None:
        """Return the timestamps that were kept, and forget them: the caller exports them. None if there are none."""
        if not isinstance(self._opening, bytes) or self._opening == _EXPORTED:
            return None
        stamps, self._opening = unpack_opening(self._opening), _EXPORTED
        return stamps

    @property
    def opening_exported(self) -> bool:
        return self._opening == _EXPORTED

    # -- round trips -------------------------------------------------------------------------------

    @property
    def rtt(self) -> float | None:
        """The last round trip that the agent reported, in ms."""
        return None if self._round_trips is None else _RTT.unpack_from(self._round_trips)[0]

    @property
    def rtt_histogram(self) -> bytearray | None:
        return None if self._round_trips is None else unpack_histogram(self._round_trips[_RTT.size :])

    def add_round_trip(self, milliseconds: float) -> bool:
        """Count a round trip that the agent reported. Returns False if it cannot be one."""
        if not 0 <= milliseconds < MAX_RTT_MS:
            return False
        histogram = self.rtt_histogram or new_histogram()
        observe(histogram, milliseconds / 1000)
        self._round_trips = _RTT.pack(milliseconds) + pack_histogram(histogram)
        return True

    # -- durations of commands ---------------------------------------------------------------------

    def start_timing(self, command: str, timing: CommandTiming) -> None:
        """Stamp the messages of an open command from now on."""
        timing.command = command
        timings = self.timings
        if isinstance(timings, dict):
            timings[command] = timing
        elif timings is None or timings.command == command:
            self.timings = timing
        else:
            self.timings = {timings.command: timings, command: timing}

    def timing_of(self, command: str) -> CommandTiming | None:
        timings = self.timings
        if isinstance(timings, dict):
            return timings.get(command)
        return timings if timings is not None and timings.command == command else None

    def stop_timing(self, command: str) -> CommandTiming | None:
        """Remove and return the timestamps of a command that is over on this link."""
        timing, timings = self.timing_of(command), self.timings
        if timing is not None:
            if isinstance(timings, dict):
                del timings[command]
            if timings is timing or not timings:
                self.timings = None
        return timing

    def stop_timings(self) -> dict[str, CommandTiming]:
        """Remove and return the timestamps of all commands that are open when the link closes."""
        timings, self.timings = self.timings, None
        if isinstance(timings, dict):
            return timings
        return {} if timings is None else {timings.command: timings}

    def add_to_tally(self, stages: tuple[float | None, ...], failed: bool) -> None:
        """Count a command that ended on this link. `stages` are its durations in seconds."""
        if self.tally is None:
            self.tally = CommandStats()
        self.tally.add(stages, failed)

    def _stamp(self, message: FromAgent | None) -> None:
        kind = type(message)  # the exact type, because isinstance takes three times as long
        if kind is not Chunk and kind is not End and kind is not Ack:
            return
        timings = self.timings
        # As `timing_of` does, without a further call for each message.
        timing = timings.get(message.id) if isinstance(timings, dict) else timings  # type: ignore[union-attr]
        if timing is None or timing.command != message.id:  # type: ignore[union-attr]
            return
        if kind is Chunk:
            timing.first = timing.first or time.time_ns()
        elif kind is End:
            timing.ended = time.time_ns()
        else:
            timing.acked = timing.acked or time.time_ns()
