"""The blocking reader: follows one stream over a connection of its own and hands on what arrives.

Called by `bus` for the node's inbox. It reads in order from a remembered id, so a reconnect or a restart of
the server loses nothing that the server kept. A blocking read lasts shorter than the time-out of the socket:
a reader that blocks for longer cannot tell a quiet stream from a dead server and stays deaf for a minute.
When the stream was deleted and begun anew, or the server lost its last second, the reader begins at the
stream's start: entries may come twice, never not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError, ResponseError

from fairlead.errors import BusUnavailable
from fairlead.store.endpoint import CONNECT_TIMEOUT, Endpoint, RedisConnection, patience, reconnect_delay
from fairlead.store.reply import items, table, text

logger = logging.getLogger(__name__)

BLOCK_MS = 2_000
"""How long the server holds a read of a quiet stream: one command each 2 s is no load."""
READ_TIMEOUT = 5.0
"""Seconds until an unanswered read counts as a dead server: 3 s more than a quiet one needs."""
ENTRIES = 256
"""Entries per read: bounds what one read brings into memory and how long its handling keeps the loop."""
START = "0-0"


@dataclass(frozen=True, slots=True)
class Entry:
    id: str
    fields: dict[bytes, bytes]


class BlockingReader:
    """`last_id` is the last entry handed on; `last_error` is None while the reader is connected."""

    def __init__(
        self,
        url: str,
        stream: str,
        on_entries: Callable[[list[Entry]], None],
        *,
        last_id: str = START,
        read_timeout: float = READ_TIMEOUT,
        client_name: str = "fairlead-reader",
    ) -> None:
        self._endpoint = Endpoint(url, client_name)
        self._stream = stream
        self._on_entries = on_entries
        self._read_timeout = read_timeout
        self._owner: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.last_id = last_id
        self.last_error: Exception | None = BusUnavailable("the reader is not connected yet")
        self.reads = 0
        """Answered reads, empty ones included."""
        self.restarts = 0

    def start(self) -> None:
        if self._owner is not None:
            raise RuntimeError("the reader has been started already")
        self._owner = asyncio.create_task(self._own(), name=f"reader of {self._stream}")

    def restart(self) -> None:
        """Drop the connection and take a new one at once; nothing is lost or handed on twice by that."""
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
                connection = await self._endpoint.connect(patience(CONNECT_TIMEOUT, attempt))
                self.last_error = None
                await self._follow(connection)
            except (BusUnavailable, TimeoutError, RedisError, OSError) as e:
                self.last_error = e
                reason = f"no answer within {self._read_timeout:g} s" if isinstance(e, TimeoutError) else e
                logger.warning("the reader of %s has lost Redis: %s", self._stream, reason)
            except Exception as e:
                # As in the pipeliner: a defect may cost a second, not the node's ears for ever.
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
        """A stream that is gone, or whose newest id is older than ours, is another one: read all of it."""
        try:
            facts = items(await connection.call("XINFO", "STREAM", self._stream))
        except ResponseError as e:
            if "no such key" not in str(e):
                raise
            self.last_id = START
            return
        newest = text(facts[facts.index(b"last-generated-id") + 1])
        if _order(newest) < _order(self.last_id):
            logger.warning("%s has begun anew (at %s, we were at %s)", self._stream, newest, self.last_id)
            self.last_id = START


def _order(id_: str) -> tuple[int, int]:
    milliseconds, _, sequence = id_.partition("-")
    return int(milliseconds), int(sequence or 0)
