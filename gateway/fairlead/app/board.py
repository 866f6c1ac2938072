"""What the supervisor of workers tells the process that serves their admin port: a few numbers in shared memory.

Written by `cli.workers`, read by `merged`, and made before the fork that parts them. Each cell is one aligned
word, so a reader sees the old number or the new one and needs no lock; a pipe would need a reader that is
alive, and the supervisor must never wait for anyone.
"""

from __future__ import annotations

import mmap
import time


class Board:
    def __init__(self, workers: int) -> None:
        self._cells = memoryview(mmap.mmap(-1, 8 * (1 + 2 * workers))).cast("Q")

    def turn(self) -> None:
        """The supervisor lives: said at each turn of its loop."""
        self._cells[0] = time.monotonic_ns()

    @property
    def since_turn(self) -> float:
        """Seconds; the monotonic clock is one for all processes of a machine."""
        return (time.monotonic_ns() - self._cells[0]) / 1e9

    def set(self, worker: int, *, pid: int, restarts: int) -> None:
        self._cells[1 + 2 * worker] = pid
        self._cells[2 + 2 * worker] = restarts

    def pid(self, worker: int) -> int:
        """0 while the worker does not run."""
        return self._cells[1 + 2 * worker]

    def restarts(self, worker: int) -> int:
        return self._cells[2 + 2 * worker]
