"""What the two supervisors of child processes share: when a process is restarted, and how its end is described.

`workers` supervises the worker processes of `fairlead serve`, `demo` supervises the parts of a demo. Pure: the random
number is an argument.
"""

from __future__ import annotations

import signal

RESTART_FIRST, RESTART_MOST = 1.0, 30.0
"""Seconds before the first restart, and the maximum before later ones. Half of each is random, so that processes which
failed together do not all come back at once."""


def restart_delay(failures: int, draw: float) -> float:
    """Seconds until the restart, which double with each of the `failures` in a row. `draw` is random in [0, 1)."""
    return (0.5 + draw / 2) * min(RESTART_MOST, RESTART_FIRST * (1 << min(failures, 10)))


def describe_exit(code: int | None) -> str:
    """How a process ended, to follow "ended": "by signal 9 (SIGKILL)" or "with exit code 1"."""
    if code is None or code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"by signal {-code}"
