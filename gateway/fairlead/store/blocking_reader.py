"""The blocking reader: follows one Redis stream over its own connection and passes its entries to a callback.

`bus` uses it for the node's inbox. It reads in order from the last id it has seen, so a reconnect or a restart of the
server loses no entry that the server has kept. A blocking read is shorter than the read timeout, so that the reader can
distinguish a quiet stream from a dead server. If the stream was deleted and created again, or if the server lost the
last second of its data, the reader starts again at the beginning of the stream: an entry may arrive twice, but none is
skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec
from redis.exceptions import RedisError, ResponseError

from fairlead.errors import BusUnavailable
from fairlead.store.endpoint import CONNECT_TIMEOUT, Endpoint, RedisConnection, connect_timeout, reconnect_delay
from fairlead.store.reply import items, table, text

logger = logging.getLogger(__name__)

BLOCK_MS = 2_000
"""Milliseconds for which the server blocks a read of a quiet stream. One command every 2 s is no load."""
READ_TIMEOUT = 5.0
"""Seconds after which an unanswered read means a dead server: 3 s more than a read of a quiet stream takes."""
ENTRIES = 256
"""Entries per read. It bounds the memory for one read and the time for which its handling blocks the event loop."""
START = "0-0"
"""The id before the first entry of any stream."""


class Entry(msgspec.Struct, frozen=True):
    id: str
    fields: dict[bytes, bytes]


class BlockingReader:
    """Follows one stream. `last_id` is the id of the last entry read; `last_error` is None while it is connected."""

    def __init__(
        self,
        endpoint: Endpoint,
        stream: str,
        on_entries: Callable[[list[Entry]], None],
        *,
        last_id: str = START,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self._endpoint = endpoint
        self._stream = stream
        self._on_entries = on_entries
        self._read_timeout = read_timeout
        self._owner: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.last_id = last_id
        self.last_error: Exception | None = BusUnavailable("the reader is not connected yet")
        self.reads = 0
        """The number of answered reads, including empty ones."""
        self.restarts = 0

    def start(self) -> None:
        if self._owner is not None:
            raise RuntimeError("the reader has been started already")
        self._owner = asyncio.create_task(self._own(), name=f"reader of {self._stream}")

    def restart(self) -> None:
        """Close the connection and open a new one at once. No entry is lost or passed on twice because of that."""
        if self._owner is None:
            raise RuntimeError("the reader has not been started")
        self.restarts += 1
        self._dismiss(self._owner)
        self._owner = None
        self.start()

    async def aclose(self) -> None:
        if self._owner is not None:
            self._dismiss(self._owner)
            self._owner = None
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._endpoint.aclose()

    def _dismiss(self, owner: asyncio.Task[None]) -> None:
        self._leaving.add(owner)
        owner.add_done_callback(self._leaving.discard)
        owner.cancel()

    async def _own(self) -> None:
        attempt = 0
        while True:
            connection = None
            reads = self.reads
            try:
                connection = await self._endpoint.connect(connect_timeout(CONNECT_TIMEOUT, attempt))
                self.last_error = None
                await self._follow(connection)
            except (BusUnavailable, TimeoutError, RedisError, OSError) as e:
                self.last_error = e
                reason = f"no answer within {self._read_timeout:g} s" if isinstance(e, TimeoutError) else e
                logger.warning("the reader of %s has lost Redis: %s", self._stream, reason)
            except Exception as e:
                # As in the pipeliner, a bug may cost a second but must not end this task: no entry would ever be read
                # again.
                self.last_error = e
                logger.exception("the reader of %s failed", self._stream)
            finally:
                if connection is not None:
                    await connection.close()
            attempt = 0 if self.reads > reads else attempt + 1
            await asyncio.sleep(reconnect_delay(attempt))

    async def _follow(self, connection: RedisConnection) -> None:
        quiet = True
        while True:
            async with asyncio.timeout(self._read_timeout):
                if quiet:
                    await self._begin_anew_if_lost(connection)
                reply = await connection.call(
                    "XREAD", "BLOCK", BLOCK_MS, "COUNT", ENTRIES, "STREAMS", self._stream, self.last_id
                )
            self.reads += 1
            quiet = reply is None
            if reply is None:
                continue
            [stream] = items(reply)
            entries = [Entry(text(id_), table(fields)) for id_, fields in map(items, items(items(stream)[1]))]
            self.last_id = entries[-1].id
            try:
                self._on_entries(entries)
            except Exception:
                logger.exception("the handler of %s failed", self._stream)

    async def _begin_anew_if_lost(self, connection: RedisConnection) -> None:
        """Start at the beginning of the stream if it is gone, or if its newest id is older than `last_id`.

        In both cases it is not the stream that was read before.
        """
        try:
            facts = items(await connection.call("XINFO", "STREAM", self._stream))
        except ResponseError as e:
            if "no such key" not in str(e):
                raise
            self.last_id = START
            return
        newest = text(facts[facts.index(b"last-generated-id") + 1])
        if _order(newest) < _order(self.last_id):
            logger.warning(
                "the stream %s was created again: its newest id is %s, and %s was read before; "
                "reading it from the beginning",
                self._stream,
                newest,
                self.last_id,
            )
            self.last_id = START


def _order(id_: str) -> tuple[int, int]:
    milliseconds, _, sequence = id_.partition("-")
    return int(milliseconds), int(sequence or 0)
