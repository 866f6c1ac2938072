"""The commands that wait to be sent on one link. A session creates the queue with the first of them and drops it when
it is empty; `routing` sends what it holds. It sends nothing itself.
"""

from __future__ import annotations

from fairlead.telemetry.command_timing import CommandTiming
from fairlead.telemetry.tracing import wall_ns


class DeliveryQueue(dict[str, CommandTiming]):
    """The commands that wait to be sent on one session, in order. Exists only while there are any."""

    __slots__ = ("sending",)

    def __init__(self) -> None:
        super().__init__()
        self.sending = False
        """True while a task sends them."""

    def add(self, command: str, rung_at: int, waited: bool) -> None:
        """`rung_at`: when a doorbell told of the command (ns). `waited`: it was open before the link was."""
        if command not in self:
            self[command] = timing = CommandTiming(rung_at, wall_ns())
            timing.waited = waited
