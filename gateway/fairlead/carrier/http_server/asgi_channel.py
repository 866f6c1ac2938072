"""Plain ASGI over a connection: the listener for applications that do not attach one of their own.

`websocket_upgrade` makes one for each accepted connection whose application keeps its coroutine, and calls `receive`
and `send` for it. Backpressure works both ways: an application that does not receive pauses reading, and a peer that
does not read suspends `send`. It knows nothing about HTTP and the handshake. A peer that stays silent for two silence
periods of the timer wheel, in spite of a ping in between, is dropped, so no other keepalive is needed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from uvicorn.protocols.utils import ClientDisconnected

from fairlead.carrier.listener import Connection

MAX_QUEUED: Final = 64 << 10
"""Bytes that may wait for `receive` before reading pauses: as many as one read of the transport delivers."""
OVERHEAD: Final = 256
"""Bytes that an event counts in addition to its payload, so that empty messages cannot fill the memory either."""


class AsgiChannel:
    """The receive and send of one accepted connection."""

    __slots__ = (
        "_closed",
        "_closed_here",
        "_connection",
        "_loop",
        "_paused",
        "_queue",
        "_queued",
        "_reader",
        "_writers",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connection: Connection | None = None
        self._queue: deque[bytes | str] = deque()
        self._queued = 0
        self._paused = False
        self._reader: asyncio.Future[None] | None = None
        self._writers: asyncio.Future[None] | None = None
        self._closed: tuple[int, str] | None = None
        self._closed_here = False

    # Called by the application, through the upgrade.

    async def receive(self) -> dict[str, Any]:
        while not self._queue and self._closed is None:
            if self._reader is None or self._reader.done():
                self._reader = self._loop.create_future()
            await self._reader
        if not self._queue:
            code, reason = self._closed or (1006, "")
            return {"type": "websocket.disconnect", "code": code, "reason": reason}
        message = self._queue.popleft()
        self._queued -= len(message) + OVERHEAD
        if self._paused and self._queued <= MAX_QUEUED // 2:
            self._paused = False
            if self._connection is not None:
                self._connection.resume_reading()
        return {"type": "websocket.receive", "text" if isinstance(message, str) else "bytes": message}

    async def send(self, message: dict[str, Any]) -> None:
        while self._connection is not None and self._connection.congested and not self._connection.closing:
            if self._writers is None or self._writers.done():
                self._writers = self._loop.create_future()
            await asyncio.shield(self._writers)  # all senders wait for this one future
        connection = self._connection
        if self._closed_here:
            raise RuntimeError(f"ASGI message {message['type']!r} after 'websocket.close'")
        if connection is None or connection.closing:
            raise ClientDisconnected
        if message["type"] == "websocket.send":
            data = message.get("bytes")
            connection.send(data if data is not None else message["text"])
        elif message["type"] == "websocket.close":
            code, reason = message.get("code") or 1000, message.get("reason") or ""
            self._closed_here = True
            self._end(code, reason)
            connection.close(code, reason)
        else:
            raise RuntimeError(
                f"ASGI message {message['type']!r} is out of place: expected send or close, the connection is open"
            )

    def finish(self, code: int, reason: str) -> None:
        """Close the connection, because the application has returned."""
        if self._connection is not None:
            self._connection.close(code, reason)

    # Called by the connection.

    def on_open(self, connection: Connection) -> None:
        self._connection = connection

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        self._queue.append(message)
        self._queued += len(message) + OVERHEAD
        if self._queued > MAX_QUEUED and not self._paused:
            self._paused = True
            connection.pause_reading()
        self._wake(self._reader)

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self._connection = None
        self._end(code, reason)
        self._wake(self._writers)

    def on_silence(self, connection: Connection) -> None:
        if connection.silent_periods == 1:
            connection.ping()
        else:
            connection.close(1011, "keepalive ping timeout")
            connection.abort()

    def on_writable(self, connection: Connection) -> None:
        self._wake(self._writers)

    def on_overflow(self, connection: Connection) -> None:
        """Let the connection close with 1013: `send` waits for a slow peer, so this one sends pings and never reads."""

    def _end(self, code: int, reason: str) -> None:
        if self._closed is None:
            self._closed = (code, reason)
        self._wake(self._reader)

    @staticmethod
    def _wake(waiter: asyncio.Future[None] | None) -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
