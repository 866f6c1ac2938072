"""Runs CPU-bound functions and generators, each in a process of its own that is forked for one command and killed when
the command ends.

The worker of a pool could not be killed at a deadline without affecting other commands, and its state would leak from
one command to the next. So each command gets a fresh process from the agent's `fork_server`. The process leads its own
session and has a lower priority than the agent. It sends what it yields through a socket, which fills up while the
gateway grants no credit: then the process waits. `child_process` is the other end.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fairlead.agent.commands.command import Command
from fairlead.agent.commands.handler import Handler
from fairlead.agent.commands.processes import child_process
from fairlead.agent.commands.processes.fork_server import LOG_HINT, ForkServer, HandlerProcess, how_it_ended
from fairlead.agent.commands.worker_slots import WorkerSlots
from fairlead.agent.errors import CommandError

logger = logging.getLogger("fairlead.agent")

PROCESSES = 16
"""Maximum number of processes at once: they share the cores, with a lower priority than the agent."""
WAITING = 64
"""Commands that may wait for a process; more are refused as busy."""
REAP_TIMEOUT = 5.0
"""Seconds to wait for a killed process: the kernel ends it at once, unless it waits for a disk that hangs."""

_decode = msgspec.msgpack.Decoder(child_process.ChildMessage).decode


class ProcessRunner:
    """Runs handlers that run in a process. `handlers` are those of the agent, by method."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self.slots = WorkerSlots(PROCESSES, WAITING)
        self._handlers = handlers
        self._fork_server = ForkServer(self._modules)
        self._reaping: set[asyncio.Future[None]] = set()

    async def run(self, handler: Handler, command: Command, arguments: dict[str, Any]) -> bytes:
        """Run a handler whose slot is reserved; returns the payload of the end. Raises CommandError if the handler
        raises or its process fails.
        """
        slots = self.slots
        try:
            job = _packed_job(handler, arguments)
            await slots.acquire()
        except (CommandError, asyncio.CancelledError):
            slots.cancel_reservation()
            raise
        try:
            forked = await self._fork_server.fork()
        except (CommandError, asyncio.CancelledError):
            slots.release()
            raise
        try:
            return await self._converse(forked, job, command)
        finally:
            forked.pipe.close()
            reaping = asyncio.ensure_future(self._reap(forked))
            self._reaping.add(reaping)
            reaping.add_done_callback(self._reaping.discard)

    def _modules(self) -> Iterable[str]:
        """The modules of the handlers; the main module is imported in any case."""
        found = {h.function.__module__ for h in self._handlers.values() if h.runs_in == "process"}
        return sorted(found - {"__main__"})

    async def _converse(self, forked: HandlerProcess, job: bytes, command: Command) -> bytes:
        reader, writer = await asyncio.open_unix_connection(sock=forked.pipe)
        ready = b""
        try:
            writer.write(job)
            await writer.drain()
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
            await asyncio.wait({forked.ended}, timeout=REAP_TIMEOUT)
            why = f"the handler's process ended {how_it_ended(forked.ended.result() if forked.ended.done() else None)}"
            raise CommandError("handler_failed", why if ready else f"{why}, before it began. {LOG_HINT}") from e
        finally:
            writer.close()

    async def _reap(self, forked: HandlerProcess) -> None:
        """Kill the process if it still runs, and wait for it."""
        try:
            self._fork_server.kill(forked)
            await asyncio.wait({forked.ended}, timeout=REAP_TIMEOUT)
            if not forked.ended.done():
                logger.error("a handler process has not ended although it was killed")
        finally:
            self.slots.release()

    async def close(self) -> None:
        """Wait for the last processes, which have been killed, and end the fork server."""
        if self._reaping:
            await asyncio.wait(self._reaping, timeout=REAP_TIMEOUT)
        await self._fork_server.close()


def _packed_job(handler: Handler, arguments: dict[str, Any]) -> bytes:
    try:
        return child_process.packed_job(handler.function, arguments, handler.streams)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise CommandError(
            "handler_failed",
            f"the handler or its arguments cannot be sent to a process: {e}. Define them at the top level of a module",
        ) from e
