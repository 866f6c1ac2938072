"""The short tasks of `routing`: all of them are started here, and end when the node stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class BackgroundTasks:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None  # looking it up is a system call in Python 3.11
        self._taskless = 0
        """Pieces of work under way that need no task, because callbacks do them."""
        self._taskless_over: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._running) + self._taskless

    def begin_taskless(self) -> None:
        """Count a piece of work that callbacks do, for which a task would cost too much. The node does not stop before
        `end_taskless`, either."""
        self._taskless += 1

    def end_taskless(self) -> None:
        self._taskless -= 1
        if self._taskless_over is not None and not self._taskless:
            self._taskless_over.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task. An exception that it raises is a defect and is logged as one."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task failed", exc_info=error)

    async def aclose(self, timeout: float = 0.0) -> None:
        """Wait `timeout` seconds for the tasks and all other work to end, then cancel the tasks."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._all_over()
        for task in tuple(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _all_over(self) -> None:
        while len(self):
            if self._running:
                await asyncio.wait(self._running)
            else:
                self._taskless_over = asyncio.Event()
                await self._taskless_over.wait()
