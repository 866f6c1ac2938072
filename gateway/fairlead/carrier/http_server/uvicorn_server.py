"""uvicorn with our carrier in it: the configuration, the request timeouts and the ownership of the signals.

The command line builds a `ServerConfig` with `config()` and runs a `Server`. By itself, uvicorn closes every socket on
SIGTERM before any of our code runs. Here the first signal runs `on_stop` (the drain), and only then does uvicorn stop,
with exit code 0. `http_connection` reads the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, cast

import uvicorn

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.epoll.poller import AVAILABLE, Poller
from fairlead.carrier.http_server.admission import Admission
from fairlead.carrier.http_server.client_address import TrustedProxies
from fairlead.carrier.http_server.http_connection import HttpConnection
from fairlead.carrier.http_server.link_acceptor import DirectEndpoint, LinkAcceptor
from fairlead.carrier.http_server.websocket_upgrade import WebSocketUpgrade
from fairlead.carrier.socket_connection import ConnectionPoller
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.carrier.tls.server_certificate import ServerCertificate
from fairlead.carrier.tls.tls_acceptor import TlsAcceptor
from fairlead.errors import ConfigError

logger = logging.getLogger("fairlead.carrier")

KEEP_ALIVE: Final = 75
"""Seconds that an idle connection is kept for the next request. This is longer than proxies and clients keep theirs
(60 s by default in nginx and AWS load balancers, less in others), because the sender of requests must be the one who
closes first. Otherwise a request may meet a connection that is just being closed, and its sender cannot know whether it
was processed."""

SAME_STOP: Final = 1.0
"""Seconds after the first signal in which further signals belong to the same stop. Ctrl-C reaches every process of a
terminal's foreground group and systemd's SIGTERM reaches every process of a unit, and a wrapper or supervisor forwards
the signal once more."""

AsgiApp = Callable[..., Awaitable[None]]


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration, and the context that its protocol classes find through it."""

    def __init__(
        self,
        app: AsgiApp,
        *,
        context: ConnectionContext,
        epoll: bool,
        direct: DirectEndpoint | None,
        certificate: ServerCertificate | None,
        admission: Admission,
        proxies: TrustedProxies,
        timeouts: tuple[float, float],
        **options: Any,
    ) -> None:
        """`timeouts` are the seconds for the head and for the body of a request. Raises ConfigError for a certificate
        where there is no epoll, because the event loop would serve the port without TLS."""
        if certificate is not None and not AVAILABLE:
            raise ConfigError("this system cannot serve TLS: expected Linux (remove the certificates)")
        super().__init__(
            app, http=HttpConnection, ws=WebSocketUpgrade, interface="asgi3", server_header=False, **options
        )
        self.context = context
        self.poller = ConnectionPoller(context.timer_wheel) if epoll else None
        self.direct = direct
        self.certificate = certificate
        self.handshakes = None if certificate is None else Poller(turn=0.0)
        """Polls the connections that are in their TLS handshakes. Each turn does one step of one handshake."""
        self.admission = admission
        self.proxies = proxies
        self.lifetimes = None if admission.lifetime is None else context.timer_wheel.timeout_queue(admission.lifetime)
        self.requests = context.timer_wheel.timeout_queue(timeouts[0])
        self.bodies = context.timer_wheel.timeout_queue(timeouts[1])
        self.idle = context.timer_wheel.timeout_queue(self.timeout_keep_alive)


def config(
    app: AsgiApp,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    timer_wheel: TimerWheel,
    context: ConnectionContext | None = None,
    path: str | None = None,
    max_message: int = 1 << 20,
    max_buffered: int = 1 << 20,
    deflate: bool = False,
    request_timeout: float = 10.0,
    body_timeout: float = 30.0,
    close_timeout: float = 5.0,
    stop_timeout: int = 10,
    loop: str = "uvloop",
    epoll: bool = False,
    direct: DirectEndpoint | None = None,
    certificate: ServerCertificate | None = None,
    admission: Admission | None = None,
    trusted_proxies: Sequence[str] = (),
    access_log: bool = False,
) -> ServerConfig:
    """Return a configuration for `app`, without that of logging, which the process itself sets up.

    With a `path`, the server listens on a Unix socket there; a `Server` that is given sockets listens only on those.
    Head and body of a request may take `request_timeout` and `body_timeout` seconds. `context` replaces `timer_wheel`
    and all message limits. With `epoll`, links leave the event loop's transports (see `Poller`) or never have one, if
    `direct` takes them (see `LinkAcceptor`). With a `certificate`, all connections speak TLS, on the server's epoll in
    any case (see `TlsAcceptor`). Servers may share one `admission`. At its stop, uvicorn waits `stop_timeout` seconds.
    """
    return ServerConfig(
        app,
        context=context or ConnectionContext(timer_wheel, max_message, max_buffered, close_timeout, deflate),
        epoll=(epoll or certificate is not None) and AVAILABLE,
        direct=None if path or access_log else direct,
        certificate=certificate,
        admission=Admission() if admission is None else admission,
        proxies=TrustedProxies(trusted_proxies),
        timeouts=(request_timeout, body_timeout),
        host=host,
        port=port,
        uds=path,
        loop=loop,
        log_config=None,
        access_log=access_log,
        proxy_headers=False,  # `TrustedProxies` replaces uvicorn's handling
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=stop_timeout,
    )


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(address)
    return bound


class Server(uvicorn.Server):
    """One server of this process. If there are several, at most one may own the signals.

    The first SIGTERM or SIGINT runs `on_stop` and then stops the server. Another one, `same_stop` seconds later or
    more, stops it at once. If `same_stop` is infinite, only SIGKILL does.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        on_stop: Callable[[], Awaitable[None]] | None = None,
        own_signals: bool = True,
        same_stop: float = SAME_STOP,
    ) -> None:
        super().__init__(config)
        self.config: ServerConfig
        if config.poller is not None:
            config.poller.server = self.server_state.connections
        self._on_stop = on_stop
        self._own_signals = own_signals
        self._same_stop = same_stop
        self._stopping: asyncio.Task[None] | None = None
        self._first_stop = 0.0
        """The monotonic time of the first request to stop."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port on which the server listens; known once `started` is true."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return host, port

    @property
    def where(self) -> str:
        """The address as text for a log."""
        if self.config.uds is not None:
            return str(self.config.uds)
        host, port = self.address
        return f"{host}:{port}"

    def stop(self) -> None:
        """Stop the server, as a signal does: the first call drains, and a later one stops at once."""
        if self._stopping is None:
            self._first_stop = time.monotonic()
            self._stopping = asyncio.get_running_loop().create_task(self._drain())
            return
        if time.monotonic() - self._first_stop < self._same_stop:
            return
        logger.warning("told to stop twice: stopping at once")
        self._stopping.cancel()
        self.should_exit = self.force_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        make = self._acceptor_factory()
        if make is None:
            await super().startup(sockets)
            return
        bound = [_bind(self.config.host, self.config.port)] if sockets is None else sockets
        await super().startup([])  # everything but the servers
        acceptor = make()
        self.servers = [cast("asyncio.base_events.Server", acceptor)]
        acceptor.listen(bound)

    def _acceptor_factory(self) -> Callable[[], LinkAcceptor] | None:
        """A function that makes the acceptor of this server's connections, or None if the event loop accepts them."""
        config, state, make_http = self.config, self.server_state, self._make_http
        poller, handshakes, certificate = config.poller, config.handshakes, config.certificate
        if certificate is not None and handshakes is not None and poller is not None:
            pollers = (handshakes, poller)
            return lambda: TlsAcceptor(config, certificate, pollers, config.direct, state, make_http)
        if poller is not None and config.direct is not None:
            return lambda: LinkAcceptor(config, (poller, poller), config.direct, state, make_http)
        return None

    def _make_http(self) -> HttpConnection:
        return HttpConnection(self.config, self.server_state, self.lifespan.state)

    async def serve(self, sockets: list[Any] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            if self._stopping is not None:
                self._stopping.cancel()
                await asyncio.gather(self._stopping, return_exceptions=True)
            for poller in (self.config.handshakes, self.config.poller):
                if poller is not None:
                    poller.close()

    async def _drain(self) -> None:
        try:
            if self._on_stop is not None:
                await self._on_stop()
        except Exception:
            logger.exception("draining failed; stopping without it")
        finally:
            self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Replace uvicorn's handlers, which close all sockets and raise the signal again at the end."""
        if not self._own_signals:
            yield
            return
        loop = asyncio.get_running_loop()
        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            # After a request to stop, the handlers stay until the loop closes. Otherwise a signal of the same stop that
            # arrives after a short drain would end the process by its default action, before it has left the fleet.
            if self._stopping is None:
                for number in handled:
                    loop.remove_signal_handler(number)
