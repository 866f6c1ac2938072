"""Runs a handler where it belongs, and carries what it yields to the command's stream.

Coroutines run on the loop; plain functions in a thread of a small pool; CPU-bound ones in a process of their own,
which is killed when the command is over. Nothing here knows links or messages: output goes through Command.write.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import msgspec

from fairlead.agent.command import Command, CommandError
from fairlead.agent.handlers import Handler
from fairlead.agent.process import Child

logger = logging.getLogger("fairlead.agent")

THREADS = 8
"""Blocking handlers at once: they mostly wait, and a host has other things to do."""
PROCESSES = 16
"""Processes at once; the system shares its cores among them, below the agent in priority."""
WAITING = 64
"""Commands that wait for a thread or a process; more are refused as busy."""


class Runner:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "fairlead-handler")
        self._readers = ThreadPoolExecutor(PROCESSES, "fairlead-process")
        self._slots = {"thread": asyncio.Semaphore(THREADS), "process": asyncio.Semaphore(PROCESSES)}
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """No further command can wait its turn."""
        return self._waiting >= WAITING

    async def run(self, handler: Handler, command: Command, arguments: dict[str, Any]) -> object:
        """What the handler returns; None for generators. Whatever it raises goes through."""
        given = (command,) if handler.takes_command else ()
        if handler.place == "loop":
            if not handler.streams:
                return await handler.function(*given, **arguments)
            async with aclosing(handler.function(*given, **arguments)) as items:
                async for item in items:
                    await emit(command, item)
            return None
        self._waiting += 1
        slot = self._slots[handler.place]
        try:
            await slot.acquire()
        finally:
            self._waiting -= 1
        # A thread cannot be stopped: its slot is free when it has ended, not when its command has.
        work = self._in_thread if handler.place == "thread" else self._in_process
        running = asyncio.ensure_future(work(handler, command, given, arguments))

        def ended(done: asyncio.Future[object]) -> None:
            slot.release()
            if not done.cancelled():
                done.exception()  # told to the command, if that still waits; never to the log

        running.add_done_callback(ended)
        try:
            return await asyncio.shield(running)
        finally:
            command.abandon()

    async def _in_thread(
        self, handler: Handler, command: Command, given: tuple[Command, ...], arguments: dict[str, Any]
    ) -> object:
        loop = asyncio.get_running_loop()

        def work() -> object:
            if not handler.streams:
                return handler.function(*given, **arguments)
            for item in handler.function(*given, **arguments):
                if command.cancelled:
                    break
                asyncio.run_coroutine_threadsafe(emit(command, item), loop).result()
            return None

        return await loop.run_in_executor(self._threads, work)

    async def _in_process(
        self, handler: Handler, command: Command, given: tuple[Command, ...], arguments: dict[str, Any]
    ) -> object:
        loop = asyncio.get_running_loop()
        child = Child(handler.function, arguments, handler.streams)

        def send(item: object) -> None:
            asyncio.run_coroutine_threadsafe(emit(command, item), loop).result()

        reading = loop.run_in_executor(self._readers, child.run, send)
        try:
            while not (done := (await asyncio.wait({reading}, timeout=0.1))[0]):
                if command.cancelled:
                    child.kill()
            return done.pop().result()
        finally:
            child.kill()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)


async def emit(command: Command, item: object) -> None:
    """One item of a generator: octets and text go to stdout, everything else is a row of JSON."""
    if isinstance(item, bytes | str):
        await command.write("stdout", item)
    else:
        await command.write("row", encode(item))


def encode(value: object) -> bytes:
    """`value` as JSON. Raises CommandError when it has no such form."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, msgspec.MsgspecError, RecursionError) as e:
        raise CommandError("handler_failed", f"the result is not JSON: {e}") from e
