"""The short tasks of `routing`: all of them are started here, and end when the node stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class BackgroundTasks:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None  # looking it up is a system call in Python 3.11

    def __len__(self) -> int:
        return len(self._running)

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
        """Wait `timeout` seconds for the tasks to end, then cancel them."""
        if self._running and timeout > 0:
            await asyncio.wait(self._running, timeout=timeout)
        for task in tuple(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
