"""A connection over a foreign ASGI server, with the semantics of our own connections.

`attach` creates one when the server is not ours. It costs two tasks for each connection, where our own server needs
none. It does not import Starlette: any object with scope, receive and send serves as a `WebSocket`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final, Protocol

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.epoll.poller_socket import HIGH_WATER, LOW_WATER
from fairlead.carrier.listener import Listener, MeteredListener
from fairlead.carrier.timer_wheel import VISITS
from fairlead.wire.websocket.frame_reader import FrameReader
from fairlead.wire.websocket.frames import close_payload

logger = logging.getLogger("fairlead.carrier")

OVERHEAD: Final = 256
"""Bytes that a queued message counts in addition to its payload, so that empty messages cannot fill the memory
either."""


class WebSocket(Protocol):
    """The part of starlette.websockets.WebSocket that is used. `receive` must return "websocket.connect" first."""

    @property
    def scope(self) -> MutableMapping[str, Any]: ...

    async def receive(self) -> MutableMapping[str, Any]: ...

    async def send(self, message: MutableMapping[str, Any]) -> None: ...


class AsgiConnection:
    """A connection over a foreign ASGI server. It does what `FramedConnection` does, at the cost of two tasks."""

    def __init__(self, websocket: WebSocket, listener: Listener, context: ConnectionContext) -> None:
        self._websocket = websocket
        self.listener: Listener | None = listener
        self.context = context
        self.congested = False
        self.quiet = 0
        self._ending: tuple[int, str] | None = None
        self._queue: deque[tuple[int, dict[str, Any]]] = deque()
        self._queued = 0
        self._to_write = asyncio.Event()
        self._to_read = asyncio.Event()
        self._to_read.set()
        self._frames = _Frames(self)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def closing(self) -> bool:
        return self._ending is not None

    @property
    def silent_periods(self) -> int:
        return max(0, self.quiet - 1) // VISITS

    def send(self, message: bytes | str) -> None:
        if isinstance(message, str):
            self._put({"type": "websocket.send", "text": message}, len(message))
        else:
            self._put({"type": "websocket.send", "bytes": message}, len(message))

    def write(self, frame: bytes) -> None:
        self._frames.feed(frame)

    def ping(self, payload: bytes = b"") -> None:
        """Do nothing: ASGI has no ping, and the foreign server keeps the connection alive in its own way."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self._ending is not None:
            return
        self._ending = (code, reason)
        cut = close_payload(code, reason)[2:].decode()
        self._append({"type": "websocket.close", "code": code, "reason": cut}, 0)
        self._to_read.set()
        self.context.timer_wheel.timeout_queue(self.context.close_timeout).add(self, AsgiConnection.abort)

    def abort(self) -> None:
        if self._ending is None:
            self._ending = (1006, "")
        for task in self._tasks:
            task.cancel()

    def buffered(self) -> int:
        return self._queued

    def pause_reading(self) -> None:
        read_scheduler = self.context.read_scheduler
        if (read_scheduler is None or not read_scheduler.silence(self, True)) and self._ending is None:
            self._to_read.clear()

    def resume_reading(self) -> None:
        read_scheduler = self.context.read_scheduler
        if read_scheduler is None or not read_scheduler.silence(self, False):
            self._to_read.set()

    def charge(self, messages: float = 0, events: int = 0) -> None:
        if self.context.read_scheduler is not None:
            self.context.read_scheduler.charge(self, messages, events)

    # Called by the read scheduler. The server has already read what it delivers, so this end can only stop asking it
    # for more.

    kept = wanted = 0
    keeps_frames = False

    def hold(self) -> bool:
        silent = not self._to_read.is_set()
        if self._ending is None:
            self._to_read.clear()
        return silent

    def release(self, silent: bool) -> None:
        if not silent:
            self._to_read.set()

    def cut(self, code: int, reason: str) -> None:
        self.close(code, reason)

    def visit(self) -> None:
        if self._ending is not None:
            return
        if not self._to_read.is_set():
            self.quiet = 0
            return
        self.quiet += 1
        if self.quiet > VISITS and self.quiet % VISITS == 1:
            self._tell(lambda listener: listener.on_silence(self))

    async def run(self) -> None:
        """Run until the connection is over. Cancelling this coroutine drops the connection."""
        self.context.timer_wheel.watch(self)
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        self._tasks = [reader, writer]
        self._tell(lambda listener: listener.on_open(self))
        try:
            await asyncio.wait({reader})
        finally:
            self.context.timer_wheel.unwatch(self)
            self.context.timer_wheel.timeout_queue(self.context.close_timeout).discard(self)
            self.context.note(self, False)
            if self.context.read_scheduler is not None:
                self.context.read_scheduler.forget(self)
            reader.cancel()
            writer.cancel()
            self._tasks = []
            self._finish()
            # `wait` and not `gather`, whose CancelledError lacks the message by which anyio recognizes its own.
            await asyncio.wait({reader, writer})
            for task in (reader, writer):
                if not task.cancelled() and (error := task.exception()) is not None:
                    logger.error("the server's receive or send failed", exc_info=error)

    def _finish(self) -> None:
        code, reason = self._ending = self._ending or (1006, "")
        listener, self.listener = self.listener, None
        if listener is not None:
            try:
                listener.on_close(self, code, reason)
            except Exception:
                logger.exception("listener failed in on_close")

    async def _read(self) -> None:
        while True:
            event = await self._websocket.receive()
            if event["type"] == "websocket.disconnect":
                self._ending = self._ending or (event.get("code") or 1005, event.get("reason") or "")
                return
            await self._to_read.wait()
            self.quiet = 0
            data = event.get("bytes")
            message: bytes | str = data if data is not None else event["text"]
            if len(message) > self.context.max_message:
                self.close(1009, f"message exceeds {self.context.max_message} bytes")
            if self._ending is None:
                self._message_received(message)

    def _message_received(self, message: bytes | str) -> None:
        read_scheduler, listener = self.context.read_scheduler, self.listener
        metered = listener if read_scheduler is not None and isinstance(listener, MeteredListener) else None
        asked = 0 if metered is None else metered.asked
        self._tell(lambda listener: listener.on_message(self, message))
        if read_scheduler is not None:
            read_scheduler.took(self, 1 if metered is None else 1 - (metered.asked - asked), len(message))

    async def _write(self) -> None:
        while True:
            while not self._queue:
                self._to_write.clear()
                await self._to_write.wait()
            size, event = self._queue.popleft()
            try:
                await self._websocket.send(event)
            except Exception as error:  # its type depends on the server; `_read` learns how it ended
                logger.debug("the peer has left while it was written to: %r", error)
                return
            if event["type"] == "websocket.close":
                return
            self._queued -= size
            if self.congested and self._queued <= LOW_WATER:
                self.congested = False
                self.context.note(self, False)
                self._tell(lambda listener: listener.on_writable(self))

    def _put(self, event: dict[str, Any], size: int) -> None:
        if self._ending is not None:
            return
        if self._queued > self.context.max_buffered:
            self._tell(lambda listener: listener.on_overflow(self))
            self.close(1013, f"more than {self.context.max_buffered} bytes unread")
            return
        self._append(event, size + OVERHEAD)

    def _append(self, event: dict[str, Any], size: int) -> None:
        self._queue.append((size, event))
        self._queued += size
        if self._queued > HIGH_WATER and not self.congested:
            self.congested = True
            self.context.note(self, True)
        self._to_write.set()

    def _tell(self, call: _Call) -> None:
        if self.listener is None:
            return
        try:
            call(self.listener)
        except Exception:
            logger.exception("listener failed; its connection is closed with 1011")
            self.close(1011, "internal error")


class _Call(Protocol):
    def __call__(self, listener: Listener, /) -> None: ...


class _Frames(FrameReader):
    """Turns frames that were encoded once for many connections back into messages."""

    __slots__ = ("_connection",)

    MASKED = False

    def __init__(self, connection: AsgiConnection) -> None:
        super().__init__()
        self._connection = connection

    @property
    def max_message(self) -> int:
        return 1 << 62  # our own frames

    def message_received(self, message: bytes | str) -> None:
        self._connection.send(message)

    def ping_received(self, payload: bytes) -> None:
        """Ignore the frame: ASGI has no pings."""

    def close_received(self, code: int, reason: str) -> None:
        """Ignore the frame: a connection is ended by `close`, not by a frame."""

    def violated(self, code: int, reason: str) -> None:
        raise ValueError(f"invalid frame ({reason}): expected whole frames of a server")
