"""The replies on one connection, read from its transport without the streams of asyncio and of redis-py.

`RedisConnection` makes one once redis-py has connected, done TLS and authenticated: from then on the transport belongs
to it. With their streams each reply takes four coroutines and each write one more, which is most of what one
exchange with Redis costs this process (see decision 0081). It has no timeouts: whoever waits has them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import hiredis
from redis.asyncio.connection import DefaultParser
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse

from fairlead.store.reply import Reply
from fairlead.store.reply_limit import ReplyLimit

NOT_YET: Final = object()
"""In place of a reply that has not arrived whole."""


class ReplyStream(asyncio.Protocol):
    def __init__(self, transport: asyncio.Transport, limit: ReplyLimit | None) -> None:
        """Take over `transport`. With a `limit`, the connection ends when the server has sent more than that."""
        self._transport = transport
        self._limit = limit
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=NOT_YET
        )
        self._loop = asyncio.get_running_loop()  # looking it up is a system call in Python 3.11
        self._waiter: asyncio.Future[None] | None = None
        self._lost: Exception | None = None
        transport.set_protocol(self)

    @property
    def spent(self) -> bool:
        """Whether the connection is over, or the server has sent data that nobody asked for."""
        return self._lost is not None or self._transport.is_closing() or bool(self._reader.has_data())

    def write(self, packed: bytes) -> None:
        """Send octets. Raises redis-py's ConnectionError if the connection is over."""
        if self._lost is not None or self._transport.is_closing():
            raise self._lost or ConnectionLost("the connection is closed")
        self._transport.write(packed)

    async def read(self) -> Reply:
        """Return the next reply. Raises redis-py's error for an error reply, or if the connection is over."""
        while (reply := self._reader.gets()) is NOT_YET:
            if self._lost is not None or self._transport.is_closing():
                raise self._lost or ConnectionLost("the connection is closed")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if isinstance(reply, Exception):
            raise reply
        return cast("Reply", reply)

    # -- the transport's protocol ------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        limit = self._limit
        if limit is not None:
            limit.left -= len(data)
            if limit.left < 0:
                self._over(ConnectionLost(f"the server sent more than the {limit.most} bytes that it may send"))
                self._transport.abort()
                return
        self._reader.feed(data)
        self._wake()

    def eof_received(self) -> None:
        self._over(ConnectionLost("the server closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        self._over(error or ConnectionLost("the connection is closed"))

    def _over(self, error: Exception) -> None:
        self._lost = self._lost or error
        self._wake()

    def _wake(self) -> None:
        waiter: asyncio.Future[Any] | None = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
