"""Runs plain functions and generators in threads: they may block, the event loop must not.

Each runs in a daemon thread of its own, and there are as many at once as there are slots. The threads of a
ThreadPoolExecutor are joined at exit, so a single handler that never returns would keep the agent from ending. A thread
cannot be killed: once its command is over, a generator is closed at its next item, and what a function returns is
discarded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any

from fairlead.agent.commands.command import Command
from fairlead.agent.commands.handler import Handler
from fairlead.agent.commands.output import item, result
from fairlead.agent.commands.worker_slots import WorkerSlots

logger = logging.getLogger("fairlead.agent")

THREADS = 32
"""Maximum number of blocking handlers at once: they mostly wait. Python's ThreadPoolExecutor has at most as many by
default."""
WAITING = 64
"""Maximum number of commands that wait for a thread; more are refused as busy."""


class ThreadRunner:
    """Runs handlers that run in a thread."""

    def __init__(self) -> None:
        self.slots = WorkerSlots(THREADS, WAITING)

    async def run(self, handler: Handler, command: Command, arguments: dict[str, Any]) -> bytes:
        """Run a handler whose slot is reserved; returns the payload of the end and raises what the handler raises."""
        slots, loop = self.slots, asyncio.get_running_loop()
        try:
            await slots.acquire()
        except asyncio.CancelledError:
            slots.cancel_reservation()
            raise
        outcome: asyncio.Future[bytes] = loop.create_future()

        def ended(set_outcome: Callable[[Any], None], value: object) -> None:
            slots.release()
            if not outcome.done():
                set_outcome(value)

        def work() -> None:
            try:
                payload = _call(handler, command, arguments, loop)
                report: tuple[Callable[[Any], None], object] = (outcome.set_result, payload)
            except BaseException as e:  # the thread ends here: even SystemExit only concerns the handler
                report = (outcome.set_exception, _sendable(e))
            try:
                loop.call_soon_threadsafe(ended, *report)
            except RuntimeError:
                pass  # the loop is closed: the agent has ended before its handler

        # With the context of this task, so that what the handler traces belongs to the command.
        inside = contextvars.copy_context()
        threading.Thread(target=inside.run, args=(work,), name=f"fairlead-{handler.method}", daemon=True).start()
        return await outcome


def _call(handler: Handler, command: Command, arguments: dict[str, Any], loop: asyncio.AbstractEventLoop) -> bytes:
    given = (command,) if handler.takes_command else ()
    returned = handler.function(*given, **arguments)
    if not handler.streams:
        return result(returned)
    try:
        while not command.cancelled:
            kind, data = item(next(returned))
            asyncio.run_coroutine_threadsafe(command.write(kind, data), loop).result()
    except StopIteration as stop:
        return result(stop.value)
    except concurrent.futures.CancelledError:
        pass  # the command is over
    finally:
        returned.close()
    return b""


def _sendable(e: BaseException) -> BaseException:
    """An exception that a future accepts and a task survives."""
    if isinstance(e, StopIteration | KeyboardInterrupt | SystemExit | concurrent.futures.CancelledError):
        return RuntimeError(f"the handler raised {type(e).__name__}: {e}")
    return e
