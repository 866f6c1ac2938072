"""The queue of the commands that wait to be sent on one link.

A session creates it with the first command and drops it when it is empty. `routing` sends the commands; this module
sends nothing.
"""

from __future__ import annotations

from fairlead.telemetry.command_timing import CommandTiming
from fairlead.telemetry.tracing import wall_ns


class DeliveryQueue(dict[str, CommandTiming]):
    """The timestamps of the waiting commands, by id, in the order in which they are sent."""

    __slots__ = ("offered", "sending")

    def __init__(self) -> None:
        super().__init__()
        self.sending = False
        """True while a task sends the commands."""
        self.offered: dict[str, int] = {}
        """The commands that were offered to the link, with the generation to which they were: see `taken_offers`."""

    def add(self, command: str, rung_at: int, gives_way: bool) -> None:
        """Add `command`, unless it is in the queue. `rung_at` is when a doorbell announced it (Unix time in ns, 0 if
        not known); `gives_way` says that commands for other agents come first."""
        if command not in self:
            self[command] = timing = CommandTiming(rung_at, wall_ns())
            timing.gives_way = gives_way
