"""How loudly a line is logged that may be the same again and again: at its own level at first, then quietly.

Parts of the gateway and the agent that try something until it succeeds ask it before they log why it did not: what
lasts for hours must fill no disk, and hide nothing else in the log. It logs nothing itself, and reads no clock.
"""

from __future__ import annotations

import logging
from typing import Final

REMIND: Final = 3600.0
"""Seconds until a line that persists is loud again, where the caller names no others."""
LINES: Final = 64
"""Most lines that are remembered, where the caller names no others, so that texts of other parties cannot fill the
memory."""


class RepeatedLines:
    def __init__(self, remind: float = REMIND, lines: int = LINES) -> None:
        """A line that persists is loud again after `remind` seconds. Of more than `lines` that take turns, all are."""
        self._remind = remind
        self._most = lines
        self._logged: dict[str, float] = {}

    def level(self, line: str, level: int, now: float) -> int:
        """The level at which `line` is logged now: DEBUG if it was logged at `level` a short time ago."""
        at = self._logged.get(line)
        if at is not None and now - at < self._remind:
            return logging.DEBUG
        if len(self._logged) >= self._most:
            self._logged.clear()
        self._logged[line] = now
        return level

    def clear(self) -> None:
        """It has succeeded: every line is loud when it next occurs."""
        self._logged.clear()
