"""One child process of the supervisor: how it is forked, how it ends, and when it may be restarted.

Used by `supervisor`, which has one thread and no event loop, so a fork never copies an inconsistent state. Signals are
blocked during the fork, because the child must not run its parent's handlers. It leads a session of its own, so Ctrl-C
at a terminal reaches only the supervisor; a service manager's signal reaches each process, which is why children do not
count signals. When the supervisor dies, the kernel tells the child to stop (PR_SET_PDEATHSIG).
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
from fairlead.cli.child_processes import restart_delay
from fairlead.errors import ConfigError, FairleadError

logger = logging.getLogger("fairlead")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
"""What the supervisor handles, and its children must not."""
STABLE = 60.0
"""Seconds after which a process counts as stable: its next failure is again the first in a row."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ForkedProcess:
    """One child of the supervisor. When its process ends, another takes its place.

    `body` runs in each of them. `stop` is the signal that tells it to end: from the supervisor or, when that has died,
    from the kernel.
    """

    def __init__(self, name: str, body: Callable[[], None], stop: signal.Signals = signal.SIGTERM) -> None:
        self.name = name
        self.pid = 0
        """The id of the process; 0 while none runs."""
        self.restarts = 0
        self._body = body
        self._stop = stop
        self._failures = 0
        """Failures in a row."""
        self._started = 0.0
        self._restart_at = 0.0

    @property
    def wait(self) -> float:
        """Seconds until the next start, if no process runs; negative when it is overdue."""
        return self._restart_at - time.monotonic()

    def start(self) -> None:
        self._started = time.monotonic()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        supervisor = os.getpid()
        if (pid := os.fork()) == 0:
            self._run_child(supervisor)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid = pid
        logger.info("%s runs as pid %d", self.name, pid)

    def reap(self) -> int | None:
        """The exit code if the process has ended, negative for a signal; else None."""
        if not self.pid:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def schedule_restart(self) -> float:
        """Schedule the next start after an unexpected end; returns the seconds until then."""
        if time.monotonic() - self._started > STABLE:
            self._failures = 0
        delay = restart_delay(self._failures, random.random())
        self._failures += 1
        self.restarts += 1
        self._restart_at = time.monotonic() + delay
        return delay

    def stop(self) -> None:
        self.signal(self._stop)

    def signal(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)  # it is not reaped yet, so the id still belongs to this child

    def _run_child(self, supervisor: int) -> NoReturn:
        code = exit_codes.FAILED
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            if _libc.prctl(_PR_SET_PDEATHSIG, self._stop, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
            if os.getppid() == supervisor:  # otherwise the supervisor died before the prctl
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                self._body()
            code = exit_codes.OK
        except FairleadError as e:
            code = exit_codes.USAGE if isinstance(e, ConfigError) else exit_codes.FAILED
            logger.error("%s ends: %s", self.name, e.message)  # an expected error needs no traceback
        except BaseException:
            logger.exception("%s ended because of a defect", self.name)
        finally:
            logging.shutdown()
            sys.stderr.flush()
            # Not sys.exit: the context managers around this frame belong to the supervisor.
            os._exit(code)
