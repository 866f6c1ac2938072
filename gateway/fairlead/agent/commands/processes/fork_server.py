"""The agent's end of its fork server: starts it, asks it for processes, and learns how each has ended.

Made by `ProcessRunner`. The fork server starts with the first command that needs it, imports the modules of the
handlers once, and forks a process for each command from then on. A command therefore waits neither for an interpreter
nor for imports, and nothing that a handler does to its process affects the next one. The fork server never runs a
handler itself, so it does not grow. It ends after a long idle time, and with the agent.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from fairlead.agent.commands.processes import fork_server_process
from fairlead.agent.commands.processes.fork_server_process import ENDED, FORK, FORK_FAILED, KILL, REQUEST
from fairlead.agent.errors import CommandError

logger = logging.getLogger("fairlead.agent")

START_TIMEOUT = 60.0
"""Seconds for the fork server to import the agent's modules."""
END_TIMEOUT = 5.0
"""Seconds for the fork server to end: it only kills what it has forked."""
IDLE_TIMEOUT = 600.0
"""Seconds without a process after which the fork server ends: a start takes a second, and is cheaper every ten minutes
than the memory of its modules all the time."""

LOG_HINT = 'The agent\'s log says why; a module that calls agent.run() must do so under `if __name__ == "__main__":`'


@dataclass(frozen=True, slots=True)
class HandlerProcess:
    """A process that was requested. `pipe` is the agent's end of the socket from which the process reads its job."""

    number: int
    pipe: socket.socket
    ended: asyncio.Future[int | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The exit code, negative for a signal; None if that is not known, because the fork server has died."""


class ForkServer:
    def __init__(self, modules: Callable[[], Iterable[str]]) -> None:
        """`modules` returns the names of the modules to import in addition to the main module."""
        self._modules = modules
        self._numbers = itertools.count(1)
        self._forked: dict[int, HandlerProcess] = {}
        self._control: socket.socket | None = None
        """The socket to the fork server; None while it does not run."""
        self._process: BaseProcess | None = None
        self._starting: asyncio.Future[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Future[None]] = set()

    async def fork(self) -> HandlerProcess:
        """Return a new process. Raises CommandError if none can be started."""
        if self._control is None:
            if self._starting is None:
                self._starting = asyncio.ensure_future(self._start())
                self._starting.add_done_callback(self._started)
            await asyncio.shield(self._starting)
        assert self._control is not None
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [REQUEST.pack(FORK, number := next(self._numbers))], [theirs.fileno()])
        except OSError as e:
            ours.close()
            raise CommandError("handler_failed", f"no process could be started: {e}") from e
        finally:
            theirs.close()
        if self._idle is not None:
            self._idle.cancel()
        forked = self._forked[number] = HandlerProcess(number, ours)
        return forked

    def kill(self, forked: HandlerProcess) -> None:
        """Kill the process and everything in its session. Does nothing if it has ended."""
        if forked.number in self._forked and self._control is not None:
            try:
                self._control.send(REQUEST.pack(KILL, forked.number))
            except OSError:
                logger.warning("the fork server accepts no requests: ending it and all handler processes")
                self._end()

    async def close(self) -> None:
        """End the fork server with everything that it has forked."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        self._end()
        if self._ending:
            await asyncio.wait(self._ending)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # Spawned, because a fork of this process, which has threads, could deadlock. The fork server has no threads, so
        # its own forks cannot.
        process = multiprocessing.get_context("spawn").Process(
            target=fork_server_process.main, args=(theirs, tuple(self._modules())), daemon=True
        )
        try:
            await loop.run_in_executor(None, _start_process, process, theirs)
            async with asyncio.timeout(START_TIMEOUT):
                ready = await loop.sock_recv(ours, ENDED.size)
        except asyncio.CancelledError:  # the agent ends
            self._abandon(ours, process)
            raise
        except (OSError, RuntimeError) as e:  # TimeoutError is an OSError
            self._abandon(ours, process)
            raise CommandError("handler_failed", f"no process could be started: {e!r}. {LOG_HINT}") from e
        if not ready:
            self._abandon(ours, process)
            raise CommandError("handler_failed", f"the agent's modules could not be imported in a process. {LOG_HINT}")
        self._control, self._process = ours, process
        loop.add_reader(ours, self._read)

    @staticmethod
    def _abandon(control: socket.socket, process: BaseProcess) -> None:
        """Kill a fork server that has not begun to serve. multiprocessing reaps it."""
        control.close()
        if process.pid is not None:
            process.kill()

    def _started(self, starting: asyncio.Future[None]) -> None:
        self._starting = None
        if not starting.cancelled():
            starting.exception()  # retrieved: each command that waits gets it, but there may be none left

    def _read(self) -> None:
        assert self._control is not None
        try:
            report = self._control.recv(ENDED.size)
        except BlockingIOError:
            return
        except OSError:
            report = b""
        if not report:
            logger.error("the fork server died, and all handler processes with it; the next command starts a new one")
            self._end()
            return
        number, code = ENDED.unpack(report)
        forked = self._forked.pop(number)
        if not forked.ended.done():
            forked.ended.set_result(code)
        if not self._forked:
            self._idle = asyncio.get_running_loop().call_later(IDLE_TIMEOUT, self._end)

    def _end(self) -> None:
        """When its socket is closed, it kills what it has forked and exits."""
        control, process = self._control, self._process
        self._control = self._process = None
        if self._idle is not None:
            self._idle.cancel()
        if control is None or process is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(control)
        control.close()
        for forked in self._forked.values():
            if not forked.ended.done():
                forked.ended.set_result(None)
        self._forked.clear()
        ending = loop.run_in_executor(None, _wait_for, process)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def how_it_ended(code: int | None) -> str:
    """The exit code of a forked process, in words."""
    if code is None:
        return "without a result"
    if code >= FORK_FAILED:
        return f"before it began: {os.strerror(code - FORK_FAILED)}"
    return f"by signal {-code}" if code < 0 else f"with exit code {code} and without a result"


def _start_process(process: BaseProcess, theirs: socket.socket) -> None:
    try:
        process.start()
    finally:
        theirs.close()


def _wait_for(process: BaseProcess) -> None:
    process.join(END_TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join(END_TIMEOUT)
