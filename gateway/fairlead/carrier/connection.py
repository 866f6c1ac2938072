"""One open WebSocket, at either end: the reader of frames and the handle of the connection in one slotted object.

`http_server` and `client` create a connection when the handshake is done and give it to a `Listener`. This class does
not know what it stands on: `TransportConnection` puts it on an asyncio transport, `SocketConnection` on a bare socket.
An idle connection has no task, timer, future or buffer. The shared `TimerWheel` does everything that depends on time. A
connection drops its reference to the listener when it closes, so that no reference cycle is left for the garbage
collector.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Final, cast

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Listener
from fairlead.carrier.timer_wheel import VISITS
from fairlead.wire.websocket import frames
from fairlead.wire.websocket.frame_reader import FrameReader
from fairlead.wire.websocket.frames import BINARY, CLOSE, COMPRESS_ABOVE, FIN, PING, PONG, RSV1, TEXT

logger = logging.getLogger("fairlead.carrier")

SMALL: Final = 1024
FREQUENT: Final = 64
"""The read scheduler does not account for a connection that is read fewer than `FREQUENT` times between two visits of
the timer wheel (some 16 s), with at most `SMALL` bytes each time. This covers idle links and most busy ones."""


class FramedConnection(FrameReader):
    """The part that all share. A subclass defines what the connection stands on, how frames are encoded and which end
    disconnects first.
    """

    __slots__ = ("_ending", "congested", "context", "listener", "quiet")

    def __init__(self, listener: Listener, context: ConnectionContext, *, deflate: bool) -> None:
        super().__init__(deflate)
        self.listener: Listener | None = listener
        self.context = context
        self.congested = False
        self.quiet = 0  # visits of the timer wheel since the last byte; if negative, the reads since the last visit
        self._ending: tuple[int, str] | None = None  # the code and reason that `on_close` will report, once known

    def start(self, received: bytes = b"") -> None:
        """Call the listener's `on_open`, then read `received`, the data that followed the handshake."""
        self.begin_visits()
        listener = cast(Listener, self.listener)
        try:
            listener.on_open(self)
        except Exception:
            self._listener_failed()
        if received:
            self.data_received(received)

    @property
    def max_message(self) -> int:
        return self.context.max_message

    @property
    def closing(self) -> bool:
        return self._ending is not None

    @property
    def silent_periods(self) -> int:
        return max(0, self.quiet - 1) // VISITS

    def send(self, message: bytes | str) -> None:
        if self._ending is not None:
            return
        if isinstance(message, str):
            first, payload = FIN | TEXT, message.encode()
        else:
            first, payload = FIN | BINARY, message
        if self.deflate and len(payload) > COMPRESS_ABOVE:
            first, payload = first | RSV1, frames.deflate(payload)
        if self.congested:
            self.write(self._encode(first, payload))
        else:
            self.put(self._encode(first, payload))

    def write(self, frame: bytes) -> None:
        if self._ending is not None:
            return
        # The check precedes the write: one message may be larger than the buffer, but no second one may follow it.
        if self.congested and self.buffered() > self.context.max_buffered:
            self._overflow()
        else:
            self.put(frame)

    def ping(self, payload: bytes = b"") -> None:
        self.write(self._encode(FIN | PING, payload))

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self._ending is None:
            self._begin_close(code, reason)
            self.resume_reading()  # the peer's close frame must be read

    def abort(self) -> None:
        if self._ending is None:
            self._ending = (1006, "")
        self.discard()
        self.drop()

    def pause_reading(self) -> None:
        read_scheduler = self.context.read_scheduler
        if (read_scheduler is None or not read_scheduler.silence(self, True)) and not self.is_closing():
            self.stop_reading()

    def resume_reading(self) -> None:
        read_scheduler = self.context.read_scheduler
        if (read_scheduler is None or not read_scheduler.silence(self, False)) and not self.is_closing():
            self.go_on_reading()

    def charge(self, messages: float = 0, events: int = 0) -> None:
        if self.context.read_scheduler is not None:
            self.context.read_scheduler.charge(self, messages, events)

    def shutdown(self) -> None:
        """Close the connection with code 1012. When uvicorn stops, it calls this on every connection and then waits
        until all of them are gone.
        """
        self.close(1012, "restart")

    # Called by the read scheduler.

    def hold(self) -> bool:
        silent = not self.is_reading()
        if not self.is_closing():
            self.stop_reading()
        return silent

    def release(self, silent: bool) -> None:
        if not silent and not self.is_closing():
            self.go_on_reading()

    def cut(self, code: int, reason: str) -> None:
        if self._ending is None:
            self._begin_close(code, reason)
        self.discard()
        self.end_output()

    # Called by the timer wheel.

    def visit(self) -> None:
        if self._ending is not None:
            return
        if not self.is_reading():
            self.quiet = 0
            return
        self.quiet = max(self.quiet, 0) + 1
        if self.quiet > VISITS and self.quiet % VISITS == 1 and self.listener is not None:
            try:
                self.listener.on_silence(self)
            except Exception:
                self._listener_failed()

    # The events of the transport or socket.

    def data_received(self, data: bytes) -> None:
        quiet = self.quiet
        self.quiet = quiet - 1 if quiet < 0 else -1
        if (quiet > -FREQUENT and len(data) <= SMALL and self._partial is None) or self.context.read_scheduler is None:
            self.feed(data)
        else:
            self.context.read_scheduler.read(self, data)

    def pause_writing(self) -> None:
        self.congested = True
        self.context.note(self, True)

    def resume_writing(self) -> None:
        self.congested = False
        self.context.note(self, False)
        if self.listener is not None and self._ending is None:
            try:
                self.listener.on_writable(self)
            except Exception:
                self._listener_failed()

    def eof_received(self) -> bool | None:
        """The peer has closed its half without a close frame. We disconnect when all output has been written."""
        if self._ending is None and self.buffered():
            self.context.timer_wheel.timeout_queue(self.context.close_timeout).add(self, FramedConnection.abort)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        context = self.context
        context.timer_wheel.timeout_queue(context.close_timeout).discard(self)
        context.note(self, False)
        self.discard()
        if context.read_scheduler is not None:
            context.read_scheduler.forget(self)
        self._finish()

    # Called by the frame reader (`FrameReader`).

    def message_received(self, message: bytes | str) -> None:
        if self._ending is None and self.listener is not None:
            try:
                self.listener.on_message(self, message)
            except Exception:
                self._listener_failed()

    def ping_received(self, payload: bytes) -> None:
        self.write(self._encode(FIN | PONG, payload))

    def close_received(self, code: int, reason: str) -> None:
        if self._ending is None:
            self._begin_close(code, "", report=reason)
        self._handshake_done()
        self._finish()

    def violated(self, code: int, reason: str) -> None:
        if self._ending is None:
            self._begin_close(code, reason)
        # The peer may still be writing. Disconnecting now would answer it with a reset, which can overtake our
        # close frame. So only our half is closed, and incoming data is read and ignored until the peer has closed too.
        self.resume_reading()
        self.end_output()
        self._finish()

    # Defined by a subclass.

    @abstractmethod
    def _encode(self, first: int, payload: bytes) -> bytes:
        """Encode one frame. A client masks its frames and a server does not (RFC 6455 §5.1)."""

    @abstractmethod
    def _handshake_done(self) -> None:
        """Called when both close frames were exchanged: a server disconnects, a client waits (§7.1.1)."""

    @abstractmethod
    def begin_visits(self) -> None:
        """Let the timer wheel visit this connection."""

    @abstractmethod
    def end_visits(self) -> None: ...

    @abstractmethod
    def put(self, data: bytes) -> None:
        """Write `data`. Never blocks."""

    @abstractmethod
    def buffered(self) -> int: ...
    @abstractmethod
    def is_reading(self) -> bool: ...
    @abstractmethod
    def stop_reading(self) -> None: ...
    @abstractmethod
    def go_on_reading(self) -> None: ...

    @abstractmethod
    def end_output(self) -> None:
        """Close our half when all output has been written, or disconnect if there are no halves, as over TLS."""

    @abstractmethod
    def disconnect(self) -> None:
        """Read nothing any more, and close both halves when all output has been written."""

    @abstractmethod
    def is_closing(self) -> bool:
        """True from `disconnect` or `drop` on."""

    @abstractmethod
    def drop(self) -> None:
        """Close both halves now."""

    # Internal.

    def _begin_close(self, code: int, reason: str, *, report: str | None = None) -> None:
        self._ending = (code, reason if report is None else report)
        self.put(self._encode(FIN | CLOSE, frames.close_payload(code, reason)))
        # This timeout also ends a `disconnect` that waits for a peer that reads nothing.
        self.context.timer_wheel.timeout_queue(self.context.close_timeout).add(self, FramedConnection.abort)

    def _overflow(self) -> None:
        if self.listener is not None:
            try:
                self.listener.on_overflow(self)
            except Exception:
                self._listener_failed()
        self.close(1013, f"more than {self.context.max_buffered} bytes unread")

    def _listener_failed(self) -> None:
        logger.exception("listener failed; its connection is closed with 1011")
        self.close(1011, "internal error")

    def _finish(self) -> None:
        listener, self.listener = self.listener, None
        if listener is None:
            return
        self.end_visits()
        if self._ending is None:
            self._ending = (1006, "")
        try:
            listener.on_close(self, *self._ending)
        except Exception:
            logger.exception("listener failed in on_close")
