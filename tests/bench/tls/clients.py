"""Clients of TLS for `bench.tls`: in threads, on blocking sockets, since OpenSSL leaves the interpreter's lock.

A client connects, shakes hands, asks for a link and reads the whole head of the answer. With a session it resumes. It
verifies the certificate, and that a session was resumed when it should be.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.peers.servers import SUBPROTOCOL

THREADS = 8
TIMEOUT = 30.0
PAYLOAD = 40_000
"""Bytes of a message with which the memory of a link after a large message is measured: three records of TLS."""


class TlsClients:
    """Clients of the server on one port."""

    def __init__(self, port: int, certificate: Path, threads: int = THREADS) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(certificate))
        self._threads = threads
        self._request = (
            f"GET /v1/link HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
        ).encode()

    def session(self) -> ssl.SSLSession:
        """A session to resume. Raises SystemExit if the server gives none."""
        client = self.connect()
        session = client.session
        client.close()
        if session is None or not session.has_ticket:
            raise SystemExit(f"the server on {self._port} gives no session ticket")
        return session

    def connect(self, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
        """A connection whose request was answered."""
        plain = socket.create_connection(("127.0.0.1", self._port), TIMEOUT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = self._context.wrap_socket(plain, server_hostname="localhost", session=session)
        if bool(client.session_reused) != (session is not None):
            raise SystemExit(f"the server on {self._port} resumed a session: {client.session_reused}")
        client.sendall(self._request)
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := client.recv(4096)):
                raise SystemExit(f"the server on {self._port} has closed before it answered: {head!r}")
            head += data
        if not head.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200")):
            raise SystemExit(f"the server on {self._port} answered {head!r}")
        return client

    def rounds(self, count: int, session: ssl.SSLSession | None = None) -> None:
        """Open and close `count` connections, some at a time."""

        def one(_: int) -> None:
            self.connect(session).close()

        with ThreadPoolExecutor(self._threads) as pool:
            for _ in pool.map(one, range(count)):
                pass

    @contextmanager
    def held(self, count: int) -> Iterator[list[ssl.SSLSocket]]:
        """So many links, open at once."""
        with ThreadPoolExecutor(self._threads) as pool:
            links = list(pool.map(lambda _: self.connect(), range(count)))
        try:
            yield links
        finally:
            for link in links:
                link.close()

    def echo(self, links: list[ssl.SSLSocket]) -> None:
        """A large message over each link, and its echo."""
        with ThreadPoolExecutor(self._threads) as pool:
            for _ in pool.map(_echo, links):
                pass


def _echo(link: ssl.SSLSocket) -> None:
    payload = os.urandom(PAYLOAD)
    size = PAYLOAD.to_bytes(2, "big")
    link.sendall(b"\x82\xfe" + size + bytes(4) + payload)  # binary, masked with zeros
    answer = b""
    while len(answer) < PAYLOAD + 4:
        if not (data := link.recv(1 << 16)):
            raise SystemExit("a link was closed in the middle of an echo")
        answer += data
    if answer != b"\x82\x7e" + size + payload:
        raise SystemExit("the echo differs from the message")
