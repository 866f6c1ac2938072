"""What runs in the fork server: it has imported the agent's modules, and forks a process for each command.

Started by `fork_server` as a fresh interpreter. It serves two requests, to fork a process, whose socket comes with the
request, and to kill one, and reports how each process has ended. Whatever a process has started in its session is
killed with it. The end of the agent ends the fork server and all that it has forked.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import selectors
import signal
import socket
import struct
import threading
from collections.abc import Sequence

from fairlead.agent.commands.processes import child_process

NICE = 5
"""Lowers the priority below the agent's, whose heartbeats must not wait for a handler."""

REQUEST = struct.Struct("!BI")
"""A request: FORK or KILL, and the number of the process. Each is one packet."""
FORK, KILL = 1, 2
ENDED = struct.Struct("!Ii")
"""A report: the number of the process, and its exit code, negative for a signal. Number 0: the server is ready."""
FORK_FAILED = 1 << 10
"""With an errno added: the exit code of a process that could not be forked."""

logger = logging.getLogger("fairlead.agent")


def main(control: socket.socket, modules: Sequence[str]) -> None:
    """Serve until the agent closes its end of `control`."""
    os.setsid()  # so that a Ctrl-C for the agent does not reach it
    os.nice(NICE)
    for module in modules:
        importlib.import_module(module)
    if threading.active_count() > 1:
        logger.warning(
            "importing the agent's modules has started threads: they do not run in handler processes, and locks that "
            "they hold stay locked there; start threads in the handler, or once the agent runs"
        )
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of all that was imported
    try:
        control.send(ENDED.pack(0, 0))
    except OSError:
        return  # the agent is gone
    _ForkServerLoop(control).run()


class _ForkServerLoop:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._forked: dict[int, tuple[int, int]] = {}
        """By number: the process id, and a descriptor of the process, which is readable when it has ended."""

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._ended(key.data)
                elif not self._serve():
                    for number in tuple(self._forked):
                        self._kill(number)
                        self._reap(number)
                    return

    def _serve(self) -> bool:
        """Serve one request. Returns False when no more will come."""
        request, descriptors, _, _ = socket.recv_fds(self._control, REQUEST.size, 1)
        if not request:
            return False
        kind, number = REQUEST.unpack(request)
        if kind == KILL:
            self._kill(number)
        else:
            pipe = socket.socket(fileno=descriptors[0])
            try:
                self._fork(number, pipe)
            except OSError as e:
                self._control.send(ENDED.pack(number, FORK_FAILED + (e.errno or 0)))
            finally:
                pipe.close()
        return True

    def _fork(self, number: int, pipe: socket.socket) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_child(pipe)
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._forked[number] = (pid, descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, number)

    def _become_child(self, pipe: socket.socket) -> None:
        """Run one command and exit. Never returns, because the caller's frames belong to the fork server."""
        code = 1
        try:
            self._selector.close()
            self._control.close()
            for _, descriptor in self._forked.values():
                os.close(descriptor)
            child_process.main(pipe)
            code = 0
        except Exception:
            logger.exception("a handler could not be run")
        finally:
            child_process.flush_output()
            os._exit(code)

    def _kill(self, number: int) -> None:
        if number in self._forked:  # it is not reaped yet, so its id has not been reused
            os.kill(self._forked[number][0], signal.SIGKILL)

    def _ended(self, number: int) -> None:
        self._control.send(ENDED.pack(number, self._reap(number)))

    def _reap(self, number: int) -> int:
        """Kill what a process that has ended left behind in its session. Returns its exit code."""
        pid, descriptor = self._forked.pop(number)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it had not created its session yet, or was alone in it
        self._selector.unregister(descriptor)
        os.close(descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
