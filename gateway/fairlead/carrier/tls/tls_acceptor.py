"""Accepts TLS connections on the server's own epoll: handshake first, then as `link_acceptor` does without TLS.

`Server` makes a `TlsAcceptor` when its configuration has a certificate. A plain request for a link that the endpoint
takes becomes a link at once. In every other case an `HttpConnection` gets the same transport, because the state of TLS
cannot be given to a transport of the event loop.

A step of a handshake takes up to a millisecond of CPU time, and more with a large RSA key. So the sockets that wait for
one are on an epoll of their own, which does one step in each turn of the event loop; open links and HTTP requests come
in between. The listening sockets are on the same epoll: while handshakes wait for their turn, new connections wait in
the kernel.

The handshake and the first octets together have the time of a request's head; a request that arrives in pieces has this
time twice, as without TLS. Until then the connection counts as one without a valid token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import TYPE_CHECKING, Final

from fairlead.carrier.epoll.poller import Poller
from fairlead.carrier.epoll.poller_socket import READABLE, WRITABLE
from fairlead.carrier.epoll.tls_transport import RECORD, TlsObject, TlsTransport, client_certificate, server_side
from fairlead.carrier.http_server.link_acceptor import AcceptedSocket, LinkAcceptor, LinkRefusal
from fairlead.carrier.http_server.peer import Peer
from fairlead.carrier.http_server.response import refusal
from fairlead.carrier.server_connection import ServerConnection
from fairlead.carrier.socket_connection import ConnectionPoller
from fairlead.telemetry.logs import LogAggregator

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn.server import ServerState

    from fairlead.carrier.http_server.http_connection import HttpConnection
    from fairlead.carrier.http_server.link_acceptor import DirectEndpoint
    from fairlead.carrier.http_server.uvicorn_server import ServerConfig
    from fairlead.carrier.tls.server_certificate import ServerCertificate

logger = logging.getLogger("fairlead.carrier")

NO_TLS: Final = refusal(400, "This port speaks TLS: use https:// or wss:// in place of http:// or ws://.")


class TlsAcceptor(LinkAcceptor):
    """`poller` has the sockets before the end of their handshake, `links` has them afterwards."""

    def __init__(
        self,
        config: ServerConfig,
        certificate: ServerCertificate,
        pollers: tuple[Poller, ConnectionPoller],
        endpoint: DirectEndpoint | None,
        server_state: ServerState,
        make_http: Callable[[], HttpConnection],
    ) -> None:
        super().__init__(config, pollers, endpoint, server_state, make_http)
        self.certificate = certificate
        self._log_aggregator = LogAggregator(logger)

    def close(self) -> None:
        super().close()
        self._log_aggregator.aclose()

    def established(self, accepted: HandshakingSocket, tls: TlsObject, data: bytes) -> None:
        """Make a link or an HTTP connection of a socket whose handshake is done. `data` was read first."""
        self.certificate.handshakes += 1
        self.certificate.resumptions += tls.session_reused
        link = self._link_in(accepted, data)
        transport = TlsTransport(accepted.leave(), tls, self.links)
        self.links.add(accepted.sock.fileno(), transport)
        try:
            if isinstance(link, LinkRefusal):
                transport.set_protocol(asyncio.Protocol())
                transport.write(self._denial(link))
                transport.close()
            elif link is not None:
                answer, deflate = self._answer(link)
                context, listener = self.config.context, link.listener
                connection = ServerConnection(transport, listener, context, self.connections, deflate=deflate)
                transport.set_protocol(connection)
                connection.put(answer)
                connection.start(data[link.size :])
            else:
                self._serve_http(transport, data)
        except Exception:
            transport.abort()  # the poller would close the socket under it
            raise

    def _serve_http(self, transport: TlsTransport, data: bytes) -> None:
        http = self._make_http()
        transport.set_protocol(http)
        http.connection_made(transport)
        http.data_received(data)

    def failed(self, accepted: HandshakingSocket, error: OSError) -> None:
        """Close a connection whose handshake has failed or whose peer has left."""
        self.certificate.failed_handshakes += 1
        reason = (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or "the connection was lost"
        self._log_aggregator.note(
            "TLS handshakes failed",
            reason,
            logging.INFO,
            "a TLS handshake from %s failed: %s",
            accepted.client[0],
            reason,
        )
        sock = accepted.leave()
        if reason == "HTTP_REQUEST":
            try:
                with contextlib.suppress(BlockingIOError):
                    sock.recv(RECORD)  # closing a socket with unread data would reset it, and lose the answer
                sock.send(NO_TLS)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        sock.close()

    def _await_request(self, sock: socket.socket, client: tuple[str, int]) -> None:
        HandshakingSocket(self, sock, client)


class HandshakingSocket(AcceptedSocket):
    """A connection before the end of its handshake, or before its first octets afterwards. OpenSSL's state is created
    with the first octets of the peer, so a silent connection costs what it costs without TLS.
    """

    __slots__ = ("_tls", "_tls_acceptor", "_watched")

    def __init__(self, acceptor: TlsAcceptor, sock: socket.socket, client: tuple[str, int]) -> None:
        self._tls: TlsObject | None = None
        self._tls_acceptor = acceptor
        self._watched = READABLE
        super().__init__(acceptor, sock, client)

    def peer(self) -> Peer | None:
        certificate = client_certificate(self._tls) if self._tls_acceptor.certificate.clients is not None else None
        if certificate is None:
            return super().peer()
        return Peer(certificate, self.proxied)

    def ready(self, events: int) -> None:
        """Do one step of the handshake, or read what follows it."""
        acceptor, tls = self._tls_acceptor, self._tls
        if self._acceptor is None:
            return
        try:
            if tls is None:
                tls = self._tls = server_side(self.sock, acceptor.certificate.context)
            tls.do_handshake()  # does nothing when it is done
            data = tls.read(RECORD)
        except ssl.SSLWantReadError:
            self._watch(READABLE)
        except ssl.SSLWantWriteError:
            self._watch(WRITABLE)
        except OSError as error:
            acceptor.failed(self, error)
        else:
            if data:
                acceptor.established(self, tls, data)
            else:
                self.abort()  # the peer has left

    def _watch(self, events: int) -> None:
        if events != self._watched:
            self._tls_acceptor.poller.watch(self.sock.fileno(), self._watched, events)
            self._watched = events
