"""HTTP requests on our three ports: one at a time per connection, within limits, then answered or upgraded.

uvicorn gets `HttpConnection` as its `http` protocol and creates one for each connection. By itself, uvicorn parses all
data that has arrived and queues a task's worth of objects for each request in it, waits forever for a request that
never completes, and accepts heads of any size. This class feeds the parser one request, and the next one when the
answer is complete; until then reading is paused. `ParserCallbacks` does what each part of a request asks for, and
`ConnectionLimits` bounds what the connection may use.
"""

from __future__ import annotations

import asyncio
import logging

import httptools
from uvicorn.protocols.http.flow_control import FlowControl

from fairlead.carrier.http_server.parser_callbacks import ParserCallbacks, SecondRequest
from fairlead.carrier.http_server.request.buffer import RequestBuffer
from fairlead.carrier.http_server.request.head import RequestRefused, offered_protocol
from fairlead.carrier.http_server.response import refusal
from fairlead.carrier.http_server.websocket_upgrade import WebSocketUpgrade

logger = logging.getLogger("fairlead.carrier")


class HeldFlowControl(FlowControl):
    """Flow control that resumes reading, whoever asks for it, only if no received data waits for its turn."""

    waiting = False

    def resume_reading(self) -> None:
        if not self.waiting:
            super().resume_reading()


class HttpConnection(ParserCallbacks):
    """One HTTP connection. Its state is that of the request which is being read or answered."""

    flow: HeldFlowControl

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        self.flow = HeldFlowControl(transport)
        super().connection_made(transport)
        self._buffer = RequestBuffer()
        self._draining = False
        """True after the last answer. Data that still arrives is read and discarded, so that the answer is not lost."""
        self._pause: asyncio.TimerHandle | None = None
        if self.config.lifetimes is not None:
            self.config.lifetimes.add(self, HttpConnection._outlived)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.lost()
        self._forget_waits()
        self._clear()
        self._unset_keepalive_if_required()  # uvicorn would keep the timeout, and with it this object, after a reset
        super().connection_lost(exc)
        self.scope = None  # type: ignore[assignment]  # it may hold a reference to this object
        self.cycle = None  # type: ignore[assignment]  # and so does the last request's cycle

    # Incoming data.

    def data_received(self, data: bytes) -> None:
        if self._draining:
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        self._buffer.append(data)
        self._digest()

    @property
    def _waits(self) -> bool:
        """Whether incoming data must wait for the end of an answer, for the pace limit or for a valid token."""
        if self._body.open:
            return self._body.exhausted and self._unproven
        return self._pause is not None or self._answering

    @property
    def _unproven(self) -> bool:
        """Whether a chunked body is being read from a connection that has not shown a valid token."""
        return self._body.chunked and self._limits.anonymous

    def _digest(self) -> None:
        """Feed the received data to the parser as far as allowed, which is at most to the end of one request."""
        buffer, body = self._buffer, self._body
        while available := buffer.left:
            if self._waits:
                self._hold()
                return
            if body.open:
                if not self._feed(buffer.take(body.allow(available, self._unproven))):
                    return
                continue
            if (head := self._take_head()) is None:
                break
            self._complete = False
            if not self._feed(head):
                return
            if body.open and not body.ends_within(buffer.left):
                self._limits.await_body()
        else:
            self._clear()
        if self.transport.is_closing():
            return
        if self.flow.waiting:
            self.flow.waiting = False
            if not self._body.open:  # a body is read when the application asks for it
                self.flow.resume_reading()
        if not buffer.left and not self._answering and not self._body.open:
            self._arm_keepalive()

    def _take_head(self) -> bytes | None:
        """Take the head of a request from the buffer. Returns None if it is not complete, or if it was refused."""
        try:
            head = self._buffer.take_head()
        except RequestRefused as refused:
            self._refuse(refused)
            return None
        if head is None:
            self._limits.hold(self._buffer.size)
            if self._buffer.left:
                self._limits.await_head()
        return head

    def _feed(self, piece: bytes) -> bool:
        """Feed `piece` to the parser. Returns False if the connection takes no further request."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return False
            # Another protocol was offered, which RFC 9110 §7.8 lets a server ignore.
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, SecondRequest):
                self._overrun()
            elif isinstance(cause, RequestRefused):
                self._refuse(cause)
            else:
                self._refuse(RequestRefused(400, "Invalid HTTP request received."))
            return False
        return True

    def _hold(self) -> None:
        """Keep the received data until its turn, and stop reading until then."""
        self.flow.waiting = True
        self.flow.pause_reading()
        self._limits.hold(self._buffer.size)

    def _clear(self) -> None:
        self._buffer.clear()
        self._limits.hold(self._buffer.size)

    def _arm_keepalive(self) -> None:
        self.config.idle.add(self, HttpConnection.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        self.config.idle.discard(self)

    # Called by the application, or when an answer of ours is sent.

    def _authenticated(self) -> None:
        super()._authenticated()
        if self.config.lifetimes is not None:
            self.config.lifetimes.discard(self)
        if self.flow.waiting:
            self._digest()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._limits.answered(in_body=self._body.open)
        if self._body.open:
            # The request was answered before its end, as a refusal is. The rest is discarded.
            if self._unproven:
                self._drain()
            self.flow.resume_reading()
        elif not self._buffer.left:
            self.flow.resume_reading()
            self._arm_keepalive()
        elif pace := self._limits.pace:
            self._pause = self.loop.call_later(pace, self._digest_paced)
        else:
            self._digest()

    def _drain(self) -> None:
        """Take no further request, because only the parser could tell where this one ends, and close our half at once
        so that the peer knows.
        """
        self._draining = True
        self._clear()
        self.flow.waiting = False
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _digest_paced(self) -> None:
        self._pause = None
        if not self.transport.is_closing():
            self._digest()

    def handle_websocket_upgrade(self) -> None:
        early = self._buffer.take(self._buffer.left)
        self._clear()
        self._forget_waits()
        self.flow.waiting = False  # it is true if this request was sent ahead of the answer to another
        self.flow.resume_reading()
        self.connections.discard(self)
        upgrade = WebSocketUpgrade(self.config, self.server_state, self.app_state, self.loop)
        self.transport.set_protocol(upgrade)
        upgrade.connection_made(self.transport)
        method, client, proxied = self.parser.get_method(), self.scope["client"], self._limits.proxied
        upgrade.begin(method, self.url, self.headers, self.server, client, proxied)
        if early:
            upgrade.data_received(early)
        # This object and its parser refer to each other; connection_lost, which would end that, is never called.
        self.parser = None  # type: ignore[assignment]  # as uvicorn's own connection_lost does

    def _refuse(self, refused: RequestRefused) -> None:
        """Answer in place of the application, unless it has begun its response, and close the connection."""
        self._forget_waits()
        self._clear()
        if self._answering and self.cycle.response_started:
            self.transport.abort()
            return
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(refusal(refused.status, str(refused)))
        self.transport.close()

    def _overrun(self) -> None:
        """Discard the data that follows a chunked body. Closing tells its sender that it is lost (RFC 9112 §9.3.2)."""
        self._clear()
        self.flow.pause_reading()
        if self._answering:
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    def _forget_waits(self) -> None:
        self._limits.forget_times()
        if self.config.lifetimes is not None:
            self.config.lifetimes.discard(self)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _outlived(self) -> None:
        """The time that the connection may stay open without a valid token is over."""
        if self._answering:
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    def _get_upgrade(self) -> bytes | None:
        return offered_protocol(self.headers)
