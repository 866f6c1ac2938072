"""The memory in which the processes that share a listening socket see one another's loads.

The supervisor of the workers creates `WorkerLoads` before it forks them, and marks those that have ended. Each worker
makes a `PortShare` of it, which `server_sockets` asks before it accepts. Each cell is one aligned word with one writer,
so nobody needs a lock; whoever reads a number that is about to change accepts one connection more or less. Nobody ever
waits for another process here.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from typing import Final

from fairlead.carrier.accept.accept_share import UNAVAILABLE, AcceptShare

_WORD: Final = 8


class WorkerLoads:
    """Of each worker: its load, how often it has looked at the socket, whether it has stepped aside, and an eventfd
    that calls it back."""

    def __init__(self, workers: int) -> None:
        cells = memoryview(mmap.mmap(-1, 3 * workers * _WORD)).cast("Q")
        self.loads, self.looks, self.aside = (cells[n * workers : (n + 1) * workers] for n in range(3))
        self.calls = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(workers)]
        for number in range(workers):
            self.mark_ended(number)

    def __len__(self) -> int:
        return len(self.calls)

    def mark_ended(self, number: int) -> None:
        """Let the others accept without this worker, which has ended or has not started yet."""
        self.loads[number], self.aside[number] = UNAVAILABLE, 1


class PortShare:
    """One worker's part in accepting. `load` returns its connections, or UNAVAILABLE if it takes no links now."""

    def __init__(self, worker_loads: WorkerLoads, number: int) -> None:
        self.call_fd: Final = worker_loads.calls[number]
        """Readable when another worker calls this one back."""
        self.workers: Final = len(worker_loads)
        self._shared = worker_loads
        self._number = number
        self._rule = AcceptShare(number)

    def start(self, load: Callable[[], int]) -> None:
        """Take part from now on."""
        self._load = load
        self._shared.aside[self._number] = 0
        self.publish()

    def leave(self) -> None:
        """Take part no longer, or not until `come_back`: this worker cannot accept."""
        self._shared.mark_ended(self._number)

    def publish(self) -> None:
        self._shared.loads[self._number] = self._load()

    def most(self) -> int:
        """How many of the connections that wait this worker may accept. If it may accept none, it has stepped aside and
        called the worker whose turn it is."""
        shared, number = self._shared, self._number
        self.publish()
        shared.looks[number] += 1
        most, turn = self._rule.decide(shared.loads.tolist(), shared.looks.tolist(), time.monotonic())
        if not most:
            shared.aside[number] = 1
            if shared.aside[turn]:
                os.eventfd_write(shared.calls[turn], 1)
        return most

    def step_aside(self) -> bool:
        """Leave the next connection to others, because one of them was faster; False if no other watches the socket."""
        shared, number = self._shared, self._number
        shared.aside[number] = 1  # before the others are looked at: of two that step aside at once, one stays
        if 0 in shared.aside.tolist():
            return True
        shared.aside[number] = 0
        return False

    def come_back(self) -> None:
        shared, number = self._shared, self._number
        self.publish()
        shared.aside[number] = 0

    def answer_call(self) -> None:
        """Note that another worker has called this one, which is awake."""
        os.eventfd_read(self.call_fd)
        self._shared.looks[self._number] += 1
