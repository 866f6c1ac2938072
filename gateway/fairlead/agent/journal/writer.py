"""Appends records to the journal's file, syncs them in groups, and rewrites the file when most of it is no longer
needed.

Made by `Journal`, which decides what is recorded. When `append` returns, the kernel has the record, so a killed process
loses nothing. One task syncs, in a thread, whatever was appended meanwhile (a group commit). After a failed sync it is
unknown what is on the disk, so nothing is accepted until the agent is started again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fairlead.agent.errors import JournalFailed
from fairlead.agent.journal.journal_file import JournalFile
from fairlead.agent.journal.records import Entry, frame
from fairlead.agent.journal.state import JournalState

logger = logging.getLogger("fairlead.agent")

WASTE = 1 << 20
"""Bytes of obsolete records below which a rewrite is not worth its syncs."""
RETRY = 10.0
"""Seconds between attempts to rewrite a journal when the disk fails."""
CLOSE_TIMEOUT = 5.0
"""Seconds for the last sync: a disk that hangs must not keep the agent from ending."""

T = TypeVar("T")


class JournalWriter:
    def __init__(self, file: JournalFile, state: JournalState, limit: int) -> None:
        self.state = state
        self._file = file
        self._limit = limit
        self._broken = self._failing = self._closing = False
        self._waiters: list[asyncio.Future[None]] = []
        self._sync_needed = asyncio.Event()
        self._not_before = 0.0
        self._task: asyncio.Task[None] | None = None
        self._on_room: Callable[[], None] = lambda: None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fairlead-journal")

    @property
    def has_room(self) -> bool:
        """Whether output may be written. A broken journal counts as having room, because the write then reports that it
        is broken.
        """
        return self._file.size < self._limit or self._broken

    def start(self, on_room: Callable[[], None]) -> asyncio.Task[None]:
        """Begin to sync; `on_room` is called when there may be room again. The task ends with `close`."""
        self._on_room = on_room
        self._task = asyncio.create_task(self._sync_when_due())
        return self._task

    async def close(self) -> None:
        """Sync once more, and release the folder."""
        self._closing = True
        self._sync_needed.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)
            self._task.cancel()
        self._thread.shutdown(wait=False)
        self._file.close()

    def append(self, record: Entry) -> None:
        """Append a record. If this raises JournalFailed, nothing has changed."""
        framed = frame(record)
        try:
            if self._broken:
                raise OSError(errno.EIO, "an earlier sync failed")
            self._file.append(framed)
        except OSError as e:
            error = f"the journal of this agent cannot be written: {e.strerror}"
            if not self._failing:
                logger.error("%s (%s)", error, self._file.path)
            self._failing = True
            raise JournalFailed(error) from e
        self._failing = False
        self.state.apply(record, len(framed))
        self.rewrite_if_wasteful()

    def append_if_possible(self, record: Entry) -> None:
        """Append a record that a new process can do without: it takes effect even if it cannot be written."""
        try:
            self.append(record)
        except JournalFailed:
            self.state.apply(record, 0)

    def synced(self) -> asyncio.Future[None]:
        """A future that is done once everything that was appended is on the disk, or fails with JournalFailed."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._sync_needed.set()
        return waiter

    def sync_soon(self) -> None:
        self._sync_needed.set()

    def rewrite_if_wasteful(self) -> None:
        if self._wasteful:
            self._sync_needed.set()

    @property
    def _wasteful(self) -> bool:
        """Whether to rewrite the file: most of it is not needed, or it is full and an eighth of it is not needed."""
        size, live = self._file.size, self.state.live
        dead = size - live
        wanted = dead > max(live, WASTE) or (size >= self._limit and dead > self._limit // 8)
        return wanted and time.monotonic() >= self._not_before

    async def _sync_when_due(self) -> None:
        closing = False
        while not closing:
            await self._sync_needed.wait()
            self._sync_needed.clear()
            closing = self._closing
            if self._wasteful:
                await self._rewrite()
            waiters, self._waiters = self._waiters, []
            try:
                if self._broken:
                    raise OSError(errno.EIO, "an earlier sync failed")
                await self._in_thread(self._file.sync)
            except OSError as e:
                self._break(e, waiters)
            else:
                for waiter in waiters:
                    waiter.set_result(None)

    async def _rewrite(self) -> None:
        """Rewrite the file without obsolete records. Records that are appended to the old file meanwhile are copied to
        the new one.
        """
        since, records = self._file.size, list(self.state.records())
        try:
            prepared = await self._in_thread(lambda: self._file.prepare(map(frame, records)))
            self._file.replace(prepared, since)
        except OSError as e:
            logger.error("the journal in %s cannot be rewritten: %s", self._file.path, e)
            self._not_before = time.monotonic() + RETRY
            asyncio.get_running_loop().call_later(RETRY, self.rewrite_if_wasteful)
        else:
            self._on_room()

    def _break(self, e: OSError, waiters: list[asyncio.Future[None]]) -> None:
        if not self._broken:
            logger.error("the journal in %s cannot be synced: %s; the agent takes no commands", self._file.path, e)
        self._broken = True
        for waiter in waiters:
            waiter.set_exception(JournalFailed(f"the journal of this agent cannot be synced: {e.strerror}"))
        self._on_room()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
