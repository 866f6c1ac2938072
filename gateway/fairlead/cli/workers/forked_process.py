"""One process forked from the supervisor: its birth, its way out, and when it may be born again.

Used by `workers` alone. The supervisor has one thread and no event loop, so the fork copies nothing that is in
the middle of something. Signals are blocked across it: the child must not run, or answer through, the handlers
of its parent. It leads a session of its own, so Ctrl-C at a terminal reaches the supervisor alone (what a service
manager sends reaches each process, which is why children count no signals); and on the supervisor's death, however
sudden, the kernel tells it to stop (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from fairlead.cli import exit_codes
from fairlead.cli.child_processes import restart_pause
from fairlead.errors import ConfigError, FairleadError

logger = logging.getLogger("fairlead")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
"""What the supervisor handles, and its children must not."""
STABLE = 60.0
"""Seconds after which a process counts as good: the next restart is a first one again."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ForkedProcess:
    """One place among the supervisor's children, held by one process after the other. `body` runs in each; `stop` is
    the signal that tells it to end, from the supervisor or, when that has died, from the kernel."""

    def __init__(self, name: str, body: Callable[[], None], stop: signal.Signals = signal.SIGTERM) -> None:
        self.name = name
        self.pid = 0
        """The id of the process; 0 while none runs."""
        self.restarts = 0
        self._body = body
        self._stop = stop
        self._failures = 0
        self._started = 0.0
        self._due = 0.0

    @property
    def wait(self) -> float:
        """Seconds until it may be started; only of use while no process runs."""
        return self._due - time.monotonic()

    def start(self) -> None:
        self._started = time.monotonic()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        supervisor = os.getpid()
        if (pid := os.fork()) == 0:
            self._live(supervisor)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid = pid
        logger.info("%s runs as pid %d", self.name, pid)

    def reap(self) -> int | None:
        """The exit code if it has ended, negative for a signal."""
        if not self.pid:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def postpone(self) -> float:
        """After an end that nobody asked for: the seconds until the next start."""
        if time.monotonic() - self._started > STABLE:
            self._failures = 0
        pause = restart_pause(self._failures, random.random())
        self._failures += 1
        self.restarts += 1
        self._due = time.monotonic() + pause
        return pause

    def stop(self) -> None:
        self.signal(self._stop)

    def signal(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)  # not reaped yet, so the pid is still this child's

    def _live(self, supervisor: int) -> NoReturn:
        code = exit_codes.FAILED
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            if _libc.prctl(_PR_SET_PDEATHSIG, self._stop, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
            if os.getppid() == supervisor:  # it may have died before the kernel was told
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                self._body()
            code = 0
        except FairleadError as e:
            code = exit_codes.USAGE if isinstance(e, ConfigError) else exit_codes.FAILED
            logger.error("%s ends: %s", self.name, e.message)  # told for people, as main does
        except BaseException:
            logger.exception("%s ends by a defect", self.name)
        finally:
            logging.shutdown()
            sys.stderr.flush()
            # Not sys.exit: what the supervisor has opened around this frame is the supervisor's to close.
            os._exit(code)
