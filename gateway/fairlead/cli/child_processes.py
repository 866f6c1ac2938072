"""What the two supervisors of child processes share: when a process is restarted, and how its end is described.

`workers` supervises the worker processes of `fairlead serve`, `demo` supervises the parts of a demo. The restart delay
doubles with each failure in a row. Pure: the random number is an argument.
"""

from __future__ import annotations

import signal

RESTART, RESTART_MOST = 1.0, 30.0
"""Seconds before the first restart and the most of later ones; half of each is drawn, lest all come back at once."""


def restart_pause(failures: int, draw: float) -> float:
    """Seconds to wait after an end that was preceded by so many failures in a row, for a `draw` in [0, 1)."""
    return (0.5 + draw / 2) * min(RESTART_MOST, RESTART * (1 << min(failures, 10)))


def how(code: int | None) -> str:
    """How a process ended, in words: "by signal 9 (SIGKILL)", "with exit code 1". Used by the supervisors too."""
    if code is None or code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"by signal {-code}"
