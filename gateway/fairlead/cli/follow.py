"""One command watched to its end: through lost connections, and with Ctrl-C in the watcher's hand.

`commands` gives it the way to open the stream and takes lines from it. A thread reads the network and hands
lines over, because only the main thread hears signals, and it must never be cut in the middle of writing
output: so each octet is shown exactly once. What was shown is known by its offset; a stream that breaks is
opened again behind it. The hand-over is bounded, so a slow terminal slows the gateway and holds little here.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from fairlead.client import Chunk, Client, ConnectionLost, End, Line, More, Started
from fairlead.errors import ConnectionRefused, Unavailable
from fairlead.wire.retry import RetryPolicy

AHEAD = 64
"""Lines read ahead of the output: 64 chunks of 64 KiB are 4 MiB at the most."""
RETRIES = 12
RETRY = RetryPolicy(first=200, base=200, cap=5_000)
"""Twelve retries take 20 s in the mean and 40 s at the most: a gateway's restart fits."""
STABLE = 10.0
"""Seconds after which a connection counts as good though it brought no output: the retries begin anew."""
GLANCE = 0.2
"""Seconds of one wait. A signal between Python's last look for signals and the wait does not end the wait."""

Lines = AbstractContextManager[Iterator[Line]]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The user pressed Ctrl-C for the first time."""


class Overdue(Exception):
    """`patience` is used up."""


class Follower:
    """Iterate it for lines and interrupts. Without a `command` id, `post` opens the first stream."""

    def __init__(self, client: Client, post: Callable[[], Lines] | None, command: str = "", start: int = 0) -> None:
        self.command = command
        self.patience: float | None = None
        """Seconds on the monotonic clock until which lines are waited for; None is without end."""
        self._client = client
        self._post = post
        self._next = start
        # A SimpleQueue because a signal handler may put into it at any moment; the credits give it its bound.
        self._lines: queue.SimpleQueue[Line | Interrupt | Exception | None] = queue.SimpleQueue()
        self._credits = threading.Semaphore(AHEAD)
        self._left = threading.Event()

    def __enter__(self) -> Follower:
        threading.Thread(target=self._read_all, name="follower", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def interrupt(self) -> None:
        """Called by the signal handler."""
        self._lines.put(Interrupt())

    def __iter__(self) -> Iterator[Line | Interrupt]:
        while True:
            if self.patience is not None and time.monotonic() > self.patience:
                raise Overdue
            try:
                one = self._lines.get(timeout=GLANCE)
            except queue.Empty:
                continue
            if one is None:
                return
            if isinstance(one, Exception):
                raise one
            if not isinstance(one, Interrupt):
                self._credits.release()
            yield one
            if isinstance(one, End):
                return

    def _read_all(self) -> None:
        """In the thread: read the stream, again and again, until its end or until hope is lost."""
        failures = 0
        sent = False
        while not self._left.is_set():
            opened = time.monotonic()
            before = self._next
            try:
                if self._read_once():
                    return
                raise ConnectionLost(f"the stream of {self.command or 'the command'} ended before the command did")
            except (ConnectionRefused, Unavailable) as e:
                # A refusal is the gateway's answer; only a POST that got no answer is repeated (same key).
                sent = sent or isinstance(e, ConnectionLost)
                if not self.command and (not sent or not isinstance(e, ConnectionLost | ConnectionRefused)):
                    self._lines.put(e)
                    return
                if self._next > before or time.monotonic() - opened > STABLE:
                    failures = 0
                if failures == RETRIES:
                    self._lines.put(e)
                    return
                self._left.wait(RETRY.delay(failures, random.random()) / 1000)
                failures += 1
            except Exception as e:  # told by the main thread, which alone may end the process
                self._lines.put(e)
                return

    def _open(self) -> Lines:
        if self.command:
            return self._client.results(self.command, self._next)
        assert self._post is not None, "a follower is given a command, or the way to post it"
        return self._post()

    def _read_once(self) -> bool:
        """Read one stream, and the next when that says there is more. True when nothing more will come."""
        more = True
        while more:
            more = False
            with self._open() as lines:
                for line in lines:
                    if isinstance(line, More):
                        more = True
                        break
                    if self._take(line):
                        return True
        return False

    def _take(self, line: Line) -> bool:
        """Hand on one line. True when nothing more will come."""
        if isinstance(line, Chunk):
            if line.offset < self._next:
                return False  # shown before the connection was lost
            self._next = line.offset + 1
        if isinstance(line, Started):
            self.command = line.id
        while not self._credits.acquire(timeout=1):
            if self._left.is_set():  # nobody takes lines any more
                return True
        self._lines.put(line)
        return isinstance(line, End)
