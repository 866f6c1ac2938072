"""The short tasks of routing, owned: whoever starts one starts it here, and the node's stop ends them all."""

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
        """Run `work` now; an exception that leaves it is a defect, and logged as one."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of routing failed", exc_info=error)

    async def aclose(self, timeout: float = 0.0) -> None:
        """Give what runs `timeout` seconds to end, then cancel it."""
        if self._running and timeout > 0:
            await asyncio.wait(self._running, timeout=timeout)
        for task in tuple(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
