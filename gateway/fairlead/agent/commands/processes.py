"""Runs CPU-bound functions and generators, each in a process of its own: started for one command, killed with it.

A pool's worker could not be killed at a deadline without harm to others, and a fork of a process with threads may
deadlock: so each command gets a child of a fork server (or a fresh interpreter, where there is no fork server). The
child leads its own session and has a lower priority than the agent. What it yields comes through a socket, which
fills up when the gateway grants no credit: then the child waits. `child_process` is the other end.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from fairlead.agent.commands import child_process
from fairlead.agent.commands.command import Command
from fairlead.agent.commands.handler import Handler
from fairlead.agent.commands.worker_slots import WorkerSlots
from fairlead.agent.errors import CommandError

logger = logging.getLogger("fairlead.agent")

PROCESSES = 16
"""Processes at once: they share the cores, with a lower priority than the agent."""
WAITING = 64
"""Commands that may wait for a process; more are refused as busy."""
REAP_TIMEOUT = 5.0
"""Seconds to wait for a killed process: the kernel ends it at once, unless its disk hangs."""

LOG_HINT = 'The agent\'s log says why; a module that calls agent.run() must do so under `if __name__ == "__main__":`'

_decode = msgspec.msgpack.Decoder(child_process.ChildMessage).decode


class ProcessRunner:
    """Runs handlers that run in a process."""

    def __init__(self) -> None:
        self.slots = WorkerSlots(PROCESSES, WAITING)
        self._context: BaseContext = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        self._reaping: set[asyncio.Future[None]] = set()

    async def run(self, handler: Handler, command: Command, arguments: dict[str, Any]) -> bytes:
        """Run a handler whose slot is reserved; returns the payload of the end. Raises CommandError for what it
        raises.
        """
        slots = self.slots
        try:
            await slots.acquire()
        except asyncio.CancelledError:
            slots.cancel_reservation()
            raise
        parent_end, child_end = socket.socketpair()
        process = self._context.Process(  # type: ignore[attr-defined]  # every real context has it
            target=child_process.main, args=(child_end, handler.function, arguments, handler.streams), daemon=True
        )
        loop = asyncio.get_running_loop()
        # In a thread: the first one starts the fork server, which imports the user's module.
        starting = loop.run_in_executor(None, _start, process, child_end)
        try:
            await asyncio.shield(starting)
            return await self._read(parent_end, process, command)
        finally:
            parent_end.close()
            reaping = asyncio.ensure_future(self._reap(starting, process))
            self._reaping.add(reaping)
            reaping.add_done_callback(self._reaping.discard)

    async def _read(self, parent_end: socket.socket, process: BaseProcess, command: Command) -> bytes:
        reader, writer = await asyncio.open_unix_connection(sock=parent_end)
        ready = b""
        try:
            ready = await reader.readexactly(len(child_process.READY))
            while True:
                size = struct.unpack("!I", await reader.readexactly(4))[0]
                report = _decode(await reader.readexactly(size))
                if report.kind:
                    await command.write(report.kind, report.data)
                elif report.error is not None:
                    e = report.error
                    raise CommandError(e.code, e.message, e.temporary, **e.details)
                else:
                    return report.data
        except (asyncio.IncompleteReadError, ConnectionError) as e:
            why = f"the handler's process ended {await _how_it_ended(process)}"
            raise CommandError("handler_failed", why if ready else f"{why}, before it began. {LOG_HINT}") from e
        finally:
            writer.close()

    async def _reap(self, starting: asyncio.Future[None], process: BaseProcess) -> None:
        """Kill the process if it still runs, and wait for it."""
        try:
            await asyncio.wait({starting})
            if starting.exception() is None:
                _kill(process)
                await asyncio.to_thread(process.join, REAP_TIMEOUT)
                process.close()
        except ValueError:
            logger.error("process %s does not end although it was killed", process.pid)
        finally:
            self.slots.release()

    async def close(self) -> None:
        """Wait for the last children, which are killed already."""
        if self._reaping:
            await asyncio.wait(self._reaping, timeout=REAP_TIMEOUT)


def _start(process: BaseProcess, child_end: socket.socket) -> None:
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise CommandError(
            "handler_failed",
            f"the handler or its arguments cannot be sent to a process: {e}. Define them at the top level of a module",
        ) from e
    except (OSError, EOFError, RuntimeError) as e:
        raise CommandError(
            "handler_failed",
            f"no process could be started: {e!r}. {LOG_HINT}",
        ) from e
    finally:
        child_end.close()


def _kill(process: BaseProcess) -> None:
    """Also kill everything that it started in its session."""
    assert process.pid is not None
    if process.is_alive():
        process.kill()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it had not created its session yet, or was alone in it


async def _how_it_ended(process: BaseProcess) -> str:
    await asyncio.to_thread(process.join, REAP_TIMEOUT)
    code = process.exitcode
    if code is None:
        return "without a result"
    return f"by signal {-code}" if code < 0 else f"with exit code {code} and without a result"
