"""When a process that ended is started again: a pause that doubles with each failure in a row.

Used by the two supervisors, `forked` (nodes of one `serve`) and `restarts` (parts of a demo). Pure: the random
number is an argument.
"""

from __future__ import annotations

RESTART, RESTART_MOST = 1.0, 30.0
"""Seconds before the first restart and the most of later ones; half of each is drawn, lest all come back at once."""


def restart_pause(failures: int, draw: float) -> float:
    """Seconds to wait after an end that was preceded by so many failures in a row, for a `draw` in [0, 1)."""
    return (0.5 + draw / 2) * min(RESTART_MOST, RESTART * (1 << min(failures, 10)))
