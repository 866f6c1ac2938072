"""What the supervisor tells the process of the admin port: a few numbers in shared memory.

Written by `supervisor`, read by `admin_app`, and created before the fork that separates them. Each cell is one aligned
word, so a reader sees the old number or the new one and needs no lock. A pipe would need a live reader, and the
supervisor must never wait for another process.
"""

from __future__ import annotations

import mmap
import time


class SharedStatus:
    """The time of the supervisor's last pass, and of each worker its process id and its number of restarts."""

    def __init__(self, workers: int) -> None:
        self._cells = memoryview(mmap.mmap(-1, 8 * (1 + 2 * workers))).cast("Q")

    def record_pass(self) -> None:
        """Record that the supervisor is alive; called in each pass of its loop."""
        self._cells[0] = time.monotonic_ns()

    @property
    def since_pass(self) -> float:
        """Seconds since the supervisor's last pass; all processes of a machine have the same monotonic clock."""
        return (time.monotonic_ns() - self._cells[0]) / 1e9

    def set(self, worker: int, *, pid: int, restarts: int) -> None:
        self._cells[1 + 2 * worker] = pid
        self._cells[2 + 2 * worker] = restarts

    def pid(self, worker: int) -> int:
        """The process id of the worker; 0 while it does not run."""
        return self._cells[1 + 2 * worker]

    def restarts(self, worker: int) -> int:
        return self._cells[2 + 2 * worker]
