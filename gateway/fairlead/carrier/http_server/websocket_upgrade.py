"""One HTTP upgrade on its way to a WebSocket: the protocol class that uvicorn gets as `ws`.

`http_connection` makes one for each upgrade request. The application answers it in full ASGI (routing, middleware,
authentication, denial responses) in a task of its own. If its accept message has a listener (see `attach`), the
connection goes to a slim `SocketConnection` on the poller, or a `ServerConnection` if it has to stay on its transport,
and the task, the scope and this object are freed. If not, the same connection speaks ASGI through an `AsgiChannel`.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import unquote

from uvicorn.protocols.utils import (
    ClientDisconnected,
    get_client_addr,
    get_path_with_query_string,
    is_ssl,
)

from fairlead.carrier.attach import EXTENSION, LISTENER
from fairlead.carrier.connection import FramedConnection
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.epoll.tls_transport import client_certificate
from fairlead.carrier.http_server import response
from fairlead.carrier.http_server.admission import Admission
from fairlead.carrier.http_server.asgi_channel import AsgiChannel
from fairlead.carrier.http_server.peer import PEER, Peer
from fairlead.carrier.listener import Listener
from fairlead.carrier.server_connection import ServerConnection
from fairlead.carrier.socket_connection import ConnectionPoller, SocketConnection
from fairlead.wire.websocket import handshake

if TYPE_CHECKING:
    from uvicorn.server import ServerState

logger = logging.getLogger("fairlead.carrier")
access_logger = logging.getLogger("uvicorn.access")


MAX_EARLY: Final = 64 << 10
"""Bytes that are read before the application has answered. A client must wait for the answer, so any limit is fine."""


class UpgradeState(Enum):
    CONNECTING = 1  # the application has not answered yet
    REFUSING = 2  # the application has begun a denial response
    OPEN = 3  # accepted, plain ASGI
    ATTACHED = 4  # accepted with a listener, which is told of everything from now on
    ENDED = 5  # refused, or lost before an answer


class UpgradeConfig(Protocol):
    """The part of its server's configuration that an upgrade uses: uvicorn's options and the connections' context."""

    context: ConnectionContext
    poller: ConnectionPoller | None
    admission: Admission
    loaded_app: Any
    root_path: str
    access_log: bool

    @property
    def asgi_version(self) -> str: ...


class WebSocketUpgrade(asyncio.Protocol):
    """The protocol class for `uvicorn.Config(ws=WebSocketUpgrade)`; the config must also be an `UpgradeConfig`."""

    def __init__(
        self,
        config: UpgradeConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self._server = server_state
        # uvicorn's set is typed with its own protocols, but uvicorn only calls `shutdown()` on the members.
        self._connections = cast("set[FramedConnection | WebSocketUpgrade]", server_state.connections)
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._state = UpgradeState.CONNECTING
        self._scope: dict[str, Any] | None = None
        self._key = b""
        self._deflate: str | None = None
        self._early = b""
        self._connect_delivered = False
        self._wake: asyncio.Future[None] | None = None
        self._denial: tuple[int, list[tuple[bytes, bytes]], list[bytes]] = (0, [], [])
        self._channel: AsgiChannel | None = None
        self._transport: asyncio.Transport

    # Called by uvicorn and the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._early += data
        if len(self._early) > MAX_EARLY:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._config.admission.discard(self._transport)
        self._connections.discard(self)
        self._state = UpgradeState.ENDED
        self._wake_up()

    def shutdown(self) -> None:
        """Refuse the upgrade with 503, because uvicorn stops before the application has answered."""
        if self._state in (UpgradeState.CONNECTING, UpgradeState.REFUSING):
            self._respond(503, [(b"retry-after", b"1")])

    # The request.

    def begin(
        self,
        method: bytes,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        server: tuple[str, int | None] | None,
        client: tuple[str, int] | None,
        proxied: bool = False,
    ) -> None:
        """Begin with the parsed request. Its header names are in lower case. `server` is our own address, and `proxied`
        says whether a trusted proxy has made the connection."""
        own: dict[bytes, bytes] = {}
        self._scope = {}
        for name, value in headers:
            if name.startswith(b"sec-websocket-"):
                own[name] = own[name] + b"," + value if name in own else value
        self._key = own.get(b"sec-websocket-key", b"")
        if method != b"GET":
            return self._respond(400)
        if own.get(b"sec-websocket-version") != b"13":
            return self._respond(426, [(b"sec-websocket-version", b"13")])
        if not handshake.is_key(self._key):
            return self._respond(400)
        if self._config.context.deflate and b"sec-websocket-extensions" in own:
            self._deflate = handshake.accept_deflate(own[b"sec-websocket-extensions"].decode("latin-1"))
        subprotocols = own.get(b"sec-websocket-protocol", b"").decode("latin-1")
        self._scope = self._made_scope(target, headers, server, client, proxied)
        self._scope["subprotocols"] = handshake.tokens(subprotocols)
        task = self._loop.create_task(self._run(self._scope))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _made_scope(
        self,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        server: tuple[str, int | None] | None,
        client: tuple[str, int] | None,
        proxied: bool,
    ) -> dict[str, Any]:
        raw_path, _, query = target.partition(b"?")
        root = self._config.root_path
        return {
            "type": "websocket",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if is_ssl(self._transport) else "ws",
            "server": server,
            "client": client,
            "root_path": root,
            "path": root + unquote(raw_path.decode("ascii", "replace")),
            "raw_path": root.encode() + raw_path,
            "query_string": query,
            "headers": headers,
            "state": self._app_state.copy(),
            "extensions": {
                "websocket.http.response": {},
                EXTENSION: {},
                PEER: Peer(client_certificate(self._transport.get_extra_info("ssl_object")), proxied),
            },
        }

    async def _run(self, scope: dict[str, Any]) -> None:
        try:
            await self._config.loaded_app(scope, self._receive, self._send)
        except asyncio.CancelledError:
            self._end(503, 1012, "restart")
            raise
        except ClientDisconnected:
            pass  # the peer may leave while the application is sending
        except Exception:
            logger.exception("Exception in ASGI application")
            self._end(500, 1011, "internal error")
        else:
            if self._state is UpgradeState.CONNECTING:
                logger.error("ASGI application returned without an answer to %s", scope["path"])
            self._end(500, 1000, "")
        finally:
            self._scope = {}  # objects that middleware left in it may refer to this one

    def _end(self, status: int, code: int, reason: str) -> None:
        """Answer or close in place of the application, which has ended."""
        if self._state in (UpgradeState.CONNECTING, UpgradeState.REFUSING):
            self._respond(status)
        elif self._channel is not None:
            self._channel.finish(code, reason)

    # Called by the application.

    async def _receive(self) -> dict[str, Any]:
        if not self._connect_delivered:
            self._connect_delivered = True
            return {"type": "websocket.connect"}
        while self._channel is None:
            if self._state is UpgradeState.ATTACHED:
                raise RuntimeError("the connection is attached to a listener, which is given its messages")
            if self._state is UpgradeState.ENDED:
                return {"type": "websocket.disconnect", "code": 1006, "reason": ""}
            self._wake = self._loop.create_future()
            await self._wake
        return await self._channel.receive()

    async def _send(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if self._channel is not None:
            await self._channel.send(message)
        elif self._state is UpgradeState.ENDED:
            raise ClientDisconnected
        elif self._state is UpgradeState.CONNECTING and kind == "websocket.accept":
            self._accept(message)
        elif self._state is UpgradeState.CONNECTING and kind == "websocket.close":
            self._respond(403)
        elif self._state is UpgradeState.CONNECTING and kind == "websocket.http.response.start":
            self._state = UpgradeState.REFUSING
            self._denial = (message["status"], response.checked(message.get("headers") or ()), [])
        elif self._state is UpgradeState.REFUSING and kind == "websocket.http.response.body":
            status, headers, body = self._denial
            body.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._respond(status, headers, b"".join(body))
        else:
            raise RuntimeError(f"ASGI message {kind!r} is out of place: the handshake is {self._state.name.lower()}")

    # The two answers.

    def _accept(self, message: dict[str, Any]) -> None:
        context, poller = self._config.context, self._config.poller
        listener: Listener | None = message.get(LISTENER)
        headers = (*self._server.default_headers, *response.checked(message.get("headers") or ()))
        answer = response.switching_protocols(self._key, message.get("subprotocol"), self._deflate, headers)
        self._config.admission.discard(self._transport)
        self._log(101)
        self._connections.discard(self)
        if listener is None:
            self._state = UpgradeState.OPEN
            listener = self._channel = AsgiChannel(self._loop)
        else:
            self._state = UpgradeState.ATTACHED
        deflate = self._deflate is not None
        connection: FramedConnection
        fd = None if poller is None else poller.take_over(self._transport)
        if poller is not None and fd is not None:
            connection = SocketConnection(fd, poller, listener, context, deflate=deflate)
        else:
            connection = ServerConnection(self._transport, listener, context, self._connections, deflate=deflate)
            self._transport.set_protocol(connection)
        connection.put(answer)
        if len(self._early) > MAX_EARLY and not connection.is_closing():
            connection.go_on_reading()  # before the listener is called, which may pause it
        connection.start(self._early)
        self._early = b""
        del self._transport  # which may have been left: this object stays as long as the application has a channel
        self._wake_up()

    def _respond(self, status: int, headers: response.Headers = (), body: bytes = b"") -> None:
        self._log(status)
        self._state = UpgradeState.ENDED
        self._transport.write(response.denial(status, (*self._server.default_headers, *headers), body))
        self._transport.close()
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _log(self, status: int) -> None:
        if self._config.access_log and self._scope:
            scope = cast(Any, self._scope)  # uvicorn types it as a TypedDict of its own
            path = get_path_with_query_string(scope)
            access_logger.info('%s - "%s %s HTTP/%s" %d', get_client_addr(scope), "WebSocket", path, "1.1", status)
