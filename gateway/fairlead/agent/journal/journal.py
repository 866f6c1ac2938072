"""The durable memory of an agent: accepted commands, their output and events, across the end of its process.

Made by `Agent` when it has a folder; `CommandRunner` asks it before a command is acknowledged, the outbox tells it the
rest. Each record is in the kernel's hands before the message goes out, so that a killed process loses nothing; accepted
commands are on the disk before their ack, ends and events soon after (a group commit, in a thread). Chunks wait for no
disk: after a power cut the last ones may be missing, and their stream ends with `results_gap`.

It runs nothing and sends nothing. A memory with a hole is another memory: then the commands in it are forgotten and it
gets a new id, by which the gateway knows that their outcome is unknown.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from fairlead.agent.errors import JournalFailed, JournalFull
from fairlead.agent.journal.journal_file import JournalFile
from fairlead.agent.journal.records import (
    VERSION,
    Accepted,
    CommandClosed,
    Entry,
    EventStored,
    Header,
    JournalState,
    frame,
    replay,
)
from fairlead.errors import ConfigError
from fairlead.wire.messages import Chunk, Cmd, End, Error, Event
from fairlead.wire.outbox import Outbox

logger = logging.getLogger("fairlead.agent")

LIMIT = 64 << 20
"""Octets of the file: an hour's worth of output of a busy host, and no burden on its disk."""
LEAST = 8 << 20
"""The smallest limit: of the quarter that is kept for output, the last command let in may take half a MiB."""
WASTE = 1 << 20
"""Octets of what matters no more, below which rewriting is not worth its syncs."""
RETRY = 10.0
"""Seconds between attempts to rewrite a journal when the disk does not let us."""
CLOSE_TIMEOUT = 5.0
"""Seconds for the last sync: a disk that hangs must not keep the agent from ending."""

UNKNOWN = Error(
    code="outcome_unknown", message="the agent was started anew while the command ran; it was not run again"
)

T = TypeVar("T")


class Journal:
    def __init__(self, folder: str | os.PathLike[str], agent: str, limit: int = LIMIT) -> None:
        """Open or make it. Raises ConfigError when another process, or another agent, has this folder."""
        if limit < LEAST:
            raise ConfigError(f"journal limit of {limit} bytes must be at least {LEAST}")
        self._limit = limit
        self._folder = JournalFile(Path(folder))
        self._broken = self._failing = self._closing = False
        self._waiters: list[asyncio.Future[None]] = []
        self._due = asyncio.Event()
        self._not_before = 0.0
        self._keeping: asyncio.Task[None] | None = None
        self._freed: Callable[[], None] = lambda: None
        try:
            self._state = self._open(agent)
        except OSError as e:
            self._folder.close()
            raise ConfigError(f"the journal in {folder} cannot be used: {e}") from e
        except BaseException:
            self._folder.close()
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fairlead-journal")

    @property
    def id(self) -> str:
        """What the gateway compares."""
        assert self._state.head is not None
        return self._state.head.journal

    @property
    def has_room(self) -> bool:
        """Whether output may be written. A broken journal has room: what is written there tells so."""
        return self._folder.size < self._limit or self._broken

    def start(self, freed: Callable[[], None]) -> asyncio.Task[None]:
        """Begin to sync; `freed` is called when there may be room again. The task ends with `close`."""
        self._freed = freed
        self._keeping = asyncio.create_task(self._keep())
        return self._keeping

    async def close(self) -> None:
        """Sync once more and let go of the folder."""
        self._closing = True
        self._due.set()
        if self._keeping is not None:
            await asyncio.wait({self._keeping}, timeout=CLOSE_TIMEOUT)
            self._keeping.cancel()
        self._thread.shutdown(wait=False)
        self._folder.close()

    # -- what a new process finds ------------------------------------------------------------------

    def restore(self, outbox: Outbox) -> list[Accepted]:
        """Fill a new outbox. What was running ends with `outcome_unknown`, except the commands that are returned:
        they may begin again, once the gateway says that it still wants them.
        """
        now = _now()
        again: list[Accepted] = []
        for command in self._state.finished:
            outbox.finished(command)
        for command, journaled in tuple(self._state.commands.items()):
            pending: list[Chunk | End] = [chunk for chunk, _ in journaled.chunks]
            if journaled.end is not None:
                pending.append(journaled.end)
            stream = outbox.restored(command, journaled.next, pending)
            if journaled.may_begin_again(now):
                again.append(Accepted(journaled.cmd, journaled.expiry))
                continue
            if journaled.end is None:
                stream.end("error", error=UNKNOWN)
            outbox.finished(command)
        for event, _ in self._state.events.values():
            outbox.events[event.id] = event
        return again

    # -- what Commands and the outbox tell ---------------------------------------------------------

    def accept(self, cmd: Cmd) -> asyncio.Future[None]:
        """Done once the disk has it: then it may be acknowledged. Raises JournalFailed, now or then."""
        # A quarter is kept for output: else commands that wait to write could fill it and wait for each other.
        if not self.has_room or self._state.live > self._limit * 3 // 4:
            raise JournalFull(f"the journal of this agent is full ({self._limit} bytes): try again later")
        # Only what may begin again needs its arguments.
        expiry = _now() + cmd.deadline
        self._append(Accepted(cmd, expiry) if cmd.retry == "safe" else _spent(cmd, expiry))
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._due.set()
        return waiter

    def begun_again(self, accepted: Accepted) -> None:
        """A command of `restore` runs now; not a third time. Raises JournalFailed."""
        self._append(_spent(accepted.cmd, accepted.expiry))

    def keep(self, message: Chunk | End | Event) -> None:
        """Before it is part of the outbox. Raises JournalFailed, but not for an end: that is sent all the same."""
        if isinstance(message, End):
            self._note(message)
        elif isinstance(message, Event) and not self.has_room:
            raise JournalFull(f"the journal of this agent is full ({self._limit} bytes): wait, or drop some")
        else:
            self._append(message)
        if not isinstance(message, Chunk):
            self._due.set()

    def took(self, command: str) -> None:
        """Its handler has read input, which the gateway will not send again."""
        journaled = self._state.commands.get(command)
        if journaled is not None and journaled.cmd.retry == "safe" and not journaled.spent and journaled.next == 0:
            self._note(_spent(journaled.cmd, journaled.expiry))

    def stored(self, command: str, count: int) -> None:
        """The gateway has the first `count` chunks."""
        self._state.stored(command, count)
        self._look()

    def over(self, command: str) -> None:
        """The gateway has all of it, or wants no more."""
        self._note(CommandClosed(command))

    def told(self, event: str) -> None:
        """The gateway has this event."""
        self._note(EventStored(event))

    # -- the file ----------------------------------------------------------------------------------

    def _open(self, agent: str) -> JournalState:
        found = replay(self._folder.read())
        head = found.state.head
        if head is not None and head.version != VERSION:
            raise ConfigError(f"the journal in {self._folder.path} is of version {head.version}, not {VERSION}")
        if head is not None and head.agent != agent:
            raise ConfigError(f"the journal in {self._folder.path} is that of agent {head.agent!r}, not of {agent!r}")
        if head is not None and not found.damage:
            if found.torn:
                logger.warning("the journal was cut at octet %d, where its last record is torn", found.end)
            self._folder.open(found.end)
            return found.state
        state = JournalState()
        state.apply(Header(VERSION, secrets.token_hex(8), agent), 0)
        if head is not None or found.damage or found.torn:
            logger.error(
                "the journal in %s is damaged: %s. Its commands are forgotten, and the gateway ends them",
                self._folder.path, found.damage or "it has no head",
            )  # fmt: skip
            for event, size in found.state.events.values():
                state.apply(event, size)
        self._folder.replace(self._folder.prepare(map(frame, state.records())), 0)
        self._folder.sync()
        return state

    def _append(self, record: Entry) -> None:
        """Raises JournalFailed; then nothing has changed."""
        framed = frame(record)
        try:
            if self._broken:
                raise OSError(errno.EIO, "an earlier sync failed")
            self._folder.append(framed)
        except OSError as e:
            why = f"the journal of this agent cannot be written: {e.strerror}"
            if not self._failing:
                logger.error("%s (%s)", why, self._folder.path)
            self._failing = True
            raise JournalFailed(why) from e
        self._failing = False
        self._state.apply(record, len(framed))
        self._look()

    def _note(self, record: Entry) -> None:
        """What a new process may do without: it is true, whether it can be written or not."""
        try:
            self._append(record)
        except JournalFailed:
            self._state.apply(record, 0)

    def _look(self) -> None:
        if self._wasteful:
            self._due.set()

    @property
    def _wasteful(self) -> bool:
        """Whether it is to be rewritten: mostly dead, or full and dead to an eighth at least."""
        size, live = self._folder.size, self._state.live
        dead = size - live
        wanted = dead > max(live, WASTE) or (size >= self._limit and dead > self._limit // 8)
        return wanted and time.monotonic() >= self._not_before

    # -- its one task ------------------------------------------------------------------------------

    async def _keep(self) -> None:
        closing = False
        while not closing:
            await self._due.wait()
            self._due.clear()
            closing = self._closing
            if self._wasteful:
                await self._rewrite()
            waiters, self._waiters = self._waiters, []
            try:
                if self._broken:
                    raise OSError(errno.EIO, "an earlier sync failed")
                await self._in_thread(self._folder.sync)
            except OSError as e:
                self._break(e, waiters)
            else:
                for waiter in waiters:
                    waiter.set_result(None)

    async def _rewrite(self) -> None:
        """Leave out what is dead. Meanwhile the old file is written on; what it gets is copied behind."""
        since, records = self._folder.size, list(self._state.records())
        try:
            prepared = await self._in_thread(lambda: self._folder.prepare(map(frame, records)))
            self._folder.replace(prepared, since)
        except OSError as e:
            logger.error("the journal in %s cannot be rewritten: %s", self._folder.path, e)
            self._not_before = time.monotonic() + RETRY
            asyncio.get_running_loop().call_later(RETRY, self._look)
        else:
            self._freed()

    def _break(self, e: OSError, waiters: list[asyncio.Future[None]]) -> None:
        """After a failed sync nobody knows what the disk has: nothing is accepted any more until a new start."""
        if not self._broken:
            logger.error("the journal in %s cannot be synced: %s; the agent takes no commands", self._folder.path, e)
        self._broken = True
        for waiter in waiters:
            waiter.set_exception(JournalFailed(f"the journal of this agent cannot be synced: {e.strerror}"))
        self._freed()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _spent(cmd: Cmd, expiry: int) -> Accepted:
    """It will not begin again, and its arguments are not kept."""
    return Accepted(msgspec.structs.replace(cmd, payload=b"", sig=b""), expiry, spent=True)


def _now() -> int:
    """Unix ms: a deadline must outlive the process, and with it every other clock."""
    return int(time.time() * 1000)
