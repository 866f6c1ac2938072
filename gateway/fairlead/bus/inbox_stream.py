"""One stream of a node's inbox: creates it, keeps it alive, reads it, and checks that the reader still receives.

`Inbox` has one, and in a Cluster two on different primaries. The reader's connection can stop receiving without an
error (a half-open TCP connection blocks for ever), so `check` sends a canary through Redis and waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from fairlead.bus.doorbell import Canary, Doorbell, decode, encode
from fairlead.errors import BusUnavailable, FairleadError
from fairlead.store.backlog import Priority
from fairlead.store.blocking_reader import BlockingReader, Entry
from fairlead.store.reply import Reply, integer
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

TTL = 150
"""Seconds that the inbox outlives its node's last heartbeat: as long as the node's row."""
MAX_ENTRIES = 10_000
"""The bound of an inbox whose node does not read. A node that reads trims its inbox with each heartbeat, and sooner
after TRIMMED_AFTER bytes."""
TRIMMED_AFTER: Final = 64 << 10
"""Bytes after whose reading the inbox is trimmed before the next heartbeat: the doorbells of a run are hundreds of KB a
second, which Redis would keep until then. These are some 16 blocks of a stream, which Redis frees in microseconds."""
STALLED_AFTER: Final = 2
"""Consecutive late canaries: the first one restarts the reader, the second one shows that this did not help."""


def add_entry(
    store: Store, key: str, entry: bytes, priority: Priority, mode: Sequence[str] = ("NOMKSTREAM",)
) -> asyncio.Future[Reply]:
    """Doorbells are added with NOMKSTREAM: a plain XADD for a dead node would create a key that nobody reads and
    nothing expires."""
    return store.write("XADD", key, *mode, "MAXLEN", "~", MAX_ENTRIES, "*", "d", entry, priority=priority, told=False)


class InboxStream:
    def __init__(self, store: Store, key: str, on_doorbells: Callable[[list[Doorbell]], None]) -> None:
        self.key = key
        self._store = store
        self._on_doorbells = on_doorbells
        self._reader = BlockingReader(store.endpoint(key, "fairlead-inbox"), key, self._receive)
        self._canaries: dict[str, asyncio.Future[None]] = {}
        self._canary_count = 0
        self._late_canaries = 0
        self._read_bytes = 0
        """Bytes that were read since the stream was trimmed."""

    @property
    def stalled(self) -> bool:
        """True after two consecutive late canaries while Redis answered."""
        return self._late_canaries >= STALLED_AFTER

    def start(self) -> None:
        """Begin to read. The stream is there after `create`."""
        self._reader.start()

    async def create(self, token: str = "") -> None:
        """Create the stream by its first entry, and expire it in the same batch: no inbox stays for ever."""
        made = add_entry(self._store, self.key, encode([Canary(token)]), Priority.CONTROL, ())
        await self._store.submit("EXPIRE", self.key, TTL, priority=Priority.CONTROL)
        await made

    async def aclose(self, priority: Priority) -> None:
        """Stop to read, and remove the stream after the calls of `priority` that were sent before."""
        await self._reader.aclose()
        try:
            await self._store.submit("UNLINK", self.key, priority=priority)
        except FairleadError:
            pass  # its TTL removes it

    async def refresh(self) -> None:
        """Extend the stream's life, trim what was read, and create it again if Redis lost it."""
        trimmed = self._trim()
        kept = self._store.submit("EXPIRE", self.key, TTL, priority=Priority.CONTROL)
        await trimmed
        if not integer(await kept):
            logger.warning("the inbox %s is missing in Redis: creating it again", self.key)
            await self._recreate()

    def _trim(self) -> asyncio.Future[Reply]:
        """Remove what was read."""
        self._read_bytes = 0
        return self._store.submit("XTRIM", self.key, "MINID", "~", self._reader.last_id, priority=Priority.CONTROL)

    async def check(self, deadline: float) -> bool:
        """Whether a canary comes back within `deadline` seconds. If not, and Redis answers, the reader is restarted."""
        self._canary_count += 1
        token = str(self._canary_count)
        returned = self._canaries[token] = asyncio.get_running_loop().create_future()
        try:
            if await add_entry(self._store, self.key, encode([Canary(token)]), Priority.CONTROL) is None:
                await self._recreate(token)
            async with asyncio.timeout(deadline):
                await returned
        except BusUnavailable:
            return False  # Redis is away, which says nothing about the reader
        except TimeoutError:
            return await self._handle_late_canary()
        finally:
            del self._canaries[token]
        self._late_canaries = 0
        return True

    async def _handle_late_canary(self) -> bool:
        try:
            await self._store.submit("EXISTS", self.key, priority=Priority.CONTROL)
        except BusUnavailable:
            return False
        self._late_canaries += 1
        logger.warning("%d consecutive canaries are late in %s: restarting the reader", self._late_canaries, self.key)
        self._reader.restart()
        return False

    async def _recreate(self, token: str = "") -> None:
        await self.create(token)
        # Its ids may be lower than the last one read, if both streams are of one millisecond: read it from the start.
        self._reader.restart()

    def _receive(self, entries: list[Entry]) -> None:
        for entry in entries:
            others: list[Doorbell] = []
            packed = entry.fields.get(b"d", b"")
            self._read_bytes += len(packed)
            for doorbell in decode(packed):
                if not isinstance(doorbell, Canary):
                    others.append(doorbell)
                elif (returned := self._canaries.get(doorbell.token)) is not None and not returned.done():
                    returned.set_result(None)
            if others:
                self._on_doorbells(others)
        if self._read_bytes >= TRIMMED_AFTER:
            self._trim()
