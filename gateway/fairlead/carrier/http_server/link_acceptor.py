"""Accepts connections on the poller: a plain request for a link becomes one at once, everything else goes to uvicorn.

`Server` makes a `LinkAcceptor` in place of the event loop's servers when its configuration has a direct endpoint. A new
connection waits on the poller until its first octets arrive. The acceptor peeks at them, which leaves them in the
socket: if they are a whole request for a link, and the endpoint takes it, the socket becomes a link's without an HTTP
connection, a parser or a task. If the endpoint refuses it because the node has too much to do, the answer is written
at once too. In every other case the event loop makes a transport of the socket for an `HttpConnection`, which finds the
same octets there, and the application answers, with the counters and delays that it has.

A connection that waits has the limits of an HTTP connection: it counts as one without a valid token, and its first
octets have as much time as the head of a request. A request that arrives in pieces thus has this time twice.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from fairlead.carrier.accept.accept_share import UNAVAILABLE
from fairlead.carrier.accept.server_sockets import ServerSockets
from fairlead.carrier.accept.worker_loads import PortShare
from fairlead.carrier.epoll.poller import Poller
from fairlead.carrier.epoll.poller_socket import READABLE
from fairlead.carrier.http_server import response
from fairlead.carrier.http_server.client_address import address_key
from fairlead.carrier.http_server.peer import PEER, PROXY, Peer
from fairlead.carrier.http_server.request import upgrade
from fairlead.carrier.http_server.request.upgrade import MAX_PLAIN_HEAD, UpgradeRequest
from fairlead.carrier.listener import Listener
from fairlead.carrier.server_connection import ServerConnection
from fairlead.carrier.socket_connection import ConnectionPoller, SocketConnection
from fairlead.repeated_lines import RepeatedLines
from fairlead.wire.websocket import handshake

if TYPE_CHECKING:
    from uvicorn.server import ServerState

    from fairlead.carrier.http_server.http_connection import HttpConnection
    from fairlead.carrier.http_server.uvicorn_server import ServerConfig

logger = logging.getLogger("fairlead.carrier")

PAUSE: Final = 0.2
"""Seconds for which nothing is accepted when the process or the system has no free descriptor or memory. New
connections meanwhile wait in the kernel."""
LOG_AGAIN: Final = 60.0
"""Seconds until it is logged again that no connection can be accepted: as often as it is tried would fill the log."""


@dataclass(frozen=True, slots=True)
class DirectEndpoint:
    """`take` is called with the scope of a request for a link at `path`, which has its headers, subprotocols and client
    address. It returns the listener of the link, the chosen subprotocol and more headers for the answer; or a refusal;
    or None if the application is to answer. It must take no request that the application would refuse, and returns at
    once. `available` says whether it would take a link now; while it would not, other processes that share the port
    accept instead, if there are any.
    """

    path: bytes
    take: Callable[[Mapping[str, Any]], tuple[Listener, str | None, response.Headers] | LinkRefusal | None]
    available: Callable[[], bool] = lambda: True
    share: PortShare | None = None
    """This process's part in accepting, if others accept from the same sockets."""


@dataclass(frozen=True, slots=True)
class LinkRefusal:
    """An answer after which the connection is closed."""

    status: int
    headers: response.Headers
    body: bytes


@dataclass(slots=True)
class _TakenLink:
    """A link that the endpoint has taken, and the number of bytes of its request."""

    size: int
    request: UpgradeRequest
    listener: Listener
    subprotocol: str | None
    headers: response.Headers


class LinkAcceptor:
    """Stands in for the `asyncio.Server`s of one `uvicorn.Server`."""

    def __init__(
        self,
        config: ServerConfig,
        pollers: tuple[Poller, ConnectionPoller],
        endpoint: DirectEndpoint | None,
        server_state: ServerState,
        make_http: Callable[[], HttpConnection],
    ) -> None:
        """`pollers` are the one for sockets that have not asked yet, and the one for links. They may be the same."""
        self.config = config
        self.poller, self.links = pollers
        self.connections = cast("set[ServerConnection | AcceptedSocket]", server_state.connections)
        self._server_state = server_state
        self._endpoint = endpoint
        self._make_http = make_http
        self._loop = asyncio.get_running_loop()
        self._handed_over: set[asyncio.Task[None]] = set()
        self._listening = ServerSockets(self.poller, self._accept, endpoint.share if endpoint else None, self._load)
        self._pauses = RepeatedLines(LOG_AGAIN)
        self._closed = False

    @property
    def sockets(self) -> list[socket.socket]:
        return self._listening.sockets

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections on bound sockets, until `close` closes them. Raises OSError."""
        self._listening.listen(sockets, self.config.backlog)

    def close(self) -> None:
        self._closed = True
        self._listening.close()

    async def wait_closed(self) -> None:
        """Wait for the connections that are being handed over to uvicorn."""
        if self._handed_over:
            await asyncio.wait(self._handed_over)

    # Called by the sockets below.

    def decide(self, accepted: AcceptedSocket, data: bytes) -> None:
        """Make a link of a socket, or hand it over to uvicorn. `data` has arrived and is still in the socket."""
        link = self._link_in(accepted, data)
        if isinstance(link, LinkRefusal):
            self._refuse(accepted, link)
        elif link is None:
            task = self._loop.create_task(self._hand_over(accepted.leave()))
            self._handed_over.add(task)
            task.add_done_callback(self._handed_over.discard)
        elif len(accepted.sock.recv(link.size)) == link.size:
            answer, deflate = self._answer(link)
            fd, poller, context = accepted.leave(watched=True).detach(), self.links, self.config.context
            connection = SocketConnection(fd, poller, link.listener, context, deflate=deflate)
            connection.put(answer)
            connection.start()
        else:
            accepted.abort()

    def _load(self) -> int:
        if self._endpoint is not None and not self._endpoint.available():
            return UNAVAILABLE
        return len(self.connections) + self.links.connections

    def _accept(self, listening: socket.socket, most: int) -> int:
        """Accept some of the connections that wait; returns how many."""
        family, kind, protocol = int(listening.family), int(listening.type), listening.proto
        for accepted in range(most):
            try:
                # `socket.accept` without the enumerations of its attributes, which take a third of its time.
                fd, address = listening._accept()  # type: ignore[attr-defined]  # what `accept` calls
                sock = socket.socket(family, kind, protocol, fd)
            except BlockingIOError:
                return accepted
            except ConnectionAbortedError:
                continue  # it was reset while it waited
            except OSError as error:
                self._pause_accepting(error)
                return accepted
            sock.setblocking(False)
            try:
                self._await_request(sock, address[:2])
            except OSError as error:
                sock.close()
                self._pause_accepting(error)
                return accepted
        return most

    def _await_request(self, sock: socket.socket, client: tuple[str, int]) -> None:
        """Wait for the first octets. Raises OSError if the kernel has no memory to watch the socket."""
        AcceptedSocket(self, sock, client)

    def _link_in(self, accepted: AcceptedSocket, data: bytes) -> _TakenLink | LinkRefusal | None:
        """The link that the request at the beginning of `data` asks for, or its refusal; None unless it is a plain
        request that the endpoint takes or refuses."""
        size = data.find(b"\r\n\r\n") + 4
        if size < 4 or self._endpoint is None:
            return None
        request = upgrade.parse(data[:size], self._endpoint.path, accepted.client)
        if request is None:
            return None
        peer = accepted.peer()
        if peer is not None:
            request.scope["extensions"] = {PEER: peer}
        if accepted.proxied:
            client = self.config.proxies.client(request.scope["headers"])
            if client:
                request.scope["client"] = (client, 0)
        try:
            taken = self._endpoint.take(request.scope)
        except Exception:
            logger.exception("the endpoint failed before a link was made; the application answers")
            return None
        return _TakenLink(size, request, *taken) if isinstance(taken, tuple) else taken

    def _denial(self, refusal: LinkRefusal) -> bytes:
        headers = (*self._server_state.default_headers, *refusal.headers)
        return response.denial(refusal.status, headers, refusal.body)

    def _refuse(self, accepted: AcceptedSocket, refusal: LinkRefusal) -> None:
        sock = accepted.leave()
        try:
            sock.recv(MAX_PLAIN_HEAD)  # closing a socket with unread data would reset it, and lose the answer
            sock.send(self._denial(refusal))
        except OSError:
            pass  # the peer has left, or does not read
        sock.close()

    def _answer(self, link: _TakenLink) -> tuple[bytes, bool]:
        """The answer to the request for a link, and whether messages are compressed."""
        request = link.request
        deflate = None
        if request.extensions and self.config.context.deflate:
            deflate = handshake.accept_deflate(request.extensions)
        headers = (*self._server_state.default_headers, *link.headers)
        answer = response.switching_protocols(request.key, link.subprotocol, deflate, headers)
        return answer, deflate is not None

    async def _hand_over(self, sock: socket.socket) -> None:
        try:
            _, http = await self._loop.connect_accepted_socket(self._make_http, sock)
        except OSError as error:
            logger.debug("a connection was lost before it was served: %r", error)
            sock.close()
            return
        if self._closed:
            http.shutdown()  # as uvicorn has done with all others

    def _pause_accepting(self, error: OSError) -> None:
        if not self._listening.pause(PAUSE):
            return
        why = error.strerror or str(error)
        level = self._pauses.level(why, logging.WARNING, self._loop.time())
        logger.log(level, "cannot accept connections: %s; trying again every %g s", why, PAUSE)


class AcceptedSocket:
    """A connection of which nothing was read yet. It has no deadline of its own besides that for its first octets, and
    nothing happens on it unless the peer sends something.
    """

    __slots__ = ("_acceptor", "client", "proxied", "sock")

    def __init__(self, acceptor: LinkAcceptor, sock: socket.socket, client: tuple[str, int]) -> None:
        """Raises OSError if the kernel has no memory to watch it."""
        self._acceptor: LinkAcceptor | None = acceptor
        self.sock = sock
        self.client = client
        config = acceptor.config
        self.proxied = bool(config.proxies) and client[0] in config.proxies
        acceptor.poller.add(sock.fileno(), self)
        acceptor.connections.add(self)
        config.requests.add(self, AcceptedSocket.abort)
        config.admission.add(self, "" if self.proxied else address_key(client[0]))

    def peer(self) -> Peer | None:
        """What is known of the other end; None for nothing."""
        return PROXY if self.proxied else None

    def ready(self, events: int) -> None:
        """Look at what has arrived."""
        acceptor = self._acceptor
        if acceptor is None:
            return
        try:
            data = self.sock.recv(MAX_PLAIN_HEAD, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            acceptor.decide(self, data)
        else:
            self.abort()  # the peer has left

    def leave(self, *, watched: bool = False) -> socket.socket:
        """End the wait. The poller goes on watching the socket if it stays `watched`. Returns the socket."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.config.admission.discard(self)
            acceptor.config.requests.discard(self)
            acceptor.connections.discard(self)
            acceptor.poller.remove(self.sock.fileno(), 0 if watched else READABLE)
        return self.sock

    def abort(self) -> None:
        self.leave().close()

    def shutdown(self) -> None:
        """Close the connection: uvicorn stops, and no request has arrived."""
        self.abort()
