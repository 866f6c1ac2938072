"""The limits of one HTTP connection: its place in the admission, and the time for each head and body.

`HttpConnection` has one and reports to it what happens. When a time is over, the connection is aborted. The limits
check no request and write no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.carrier.http_server.client_address import address_key

if TYPE_CHECKING:
    from fairlead.carrier.http_server.uvicorn_server import ServerConfig


class ConnectionLimits:
    __slots__ = ("_ahead", "_config", "_requests", "_transport", "proxied")

    def __init__(self, config: ServerConfig, transport: asyncio.Transport, peer: str) -> None:
        """Count a new connection and wait for its first head. `peer` is its address, "" for a local socket."""
        self._config = config
        self._transport = transport
        self.proxied = bool(config.proxies) and peer in config.proxies
        """Whether a trusted proxy has made the connection, so that each request names its client."""
        self._ahead = 0
        """The number of waiting octets that was last reported to the admission."""
        self._requests = 0
        config.admission.add(transport, "" if self.proxied else address_key(peer))
        self.await_head()

    @property
    def anonymous(self) -> bool:
        """Whether the connection has not shown a valid token."""
        return self._transport in self._config.admission

    @property
    def pace(self) -> float:
        """Seconds between an answer and the start of a request that was sent ahead of it."""
        return self._config.admission.pace if self.anonymous else 0.0

    def hold(self, size: int) -> None:
        """`size` octets wait for their turn."""
        if size != self._ahead:
            self._ahead = size
            self._config.admission.hold(self._transport, size)

    # The times of a request.

    def await_head(self) -> None:
        """A head is expected; the time for it begins, unless it has begun before."""
        if self not in self._config.requests:
            self._config.requests.add(self, ConnectionLimits._abort)

    def head_received(self) -> None:
        self._config.requests.discard(self)

    def client_of(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Count the connection as one of the client that the trusted proxy has named, and return its address."""
        client = self._config.proxies.client(headers)
        self._config.admission.rename(self._transport, address_key(client))
        return client

    def await_body(self) -> None:
        self._config.bodies.add(self, ConnectionLimits._abort)

    def body_received(self) -> None:
        self._config.bodies.discard(self)
        self._config.requests.discard(self)

    def may_ask_again(self) -> bool:
        """Count a request. Returns False if the connection, which has not shown a valid token, may send no other."""
        self._requests += 1
        most = self._config.admission.requests
        return self.proxied or most is None or self._requests < most or not self.anonymous

    def answered(self, *, in_body: bool) -> None:
        """The request was answered; `in_body`: before its end, whose rest must arrive soon."""
        if self.proxied:
            self._config.admission.rename(self._transport, "")
        if in_body:
            self._config.bodies.discard(self)
            self.await_head()

    # The end of the limits.

    def authenticated(self) -> None:
        """The connection has shown a valid token."""
        self._config.admission.discard(self._transport)

    def forget_times(self) -> None:
        self._config.requests.discard(self)
        self._config.bodies.discard(self)

    def lost(self) -> None:
        """The connection is closed."""
        self._config.admission.discard(self._transport)
        self.forget_times()

    def _abort(self) -> None:
        self._transport.abort()
