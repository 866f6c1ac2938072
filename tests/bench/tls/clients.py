"""Clients of TLS for `bench.tls`: those that hold links, and those of which only the handshake counts.

A client connects, shakes hands, asks for a link and reads the whole head of the answer; it verifies the certificate.
Links are held in threads, on blocking sockets, since OpenSSL leaves the interpreter's lock. Handshakes are made by a
program in C (`handshake_clients.c`), because clients in Python need more CPU time than the server.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.peers.servers import SUBPROTOCOL

THREADS = 8
TIMEOUT = 30.0
AT_ONCE = 32
"""Handshakes in progress at the same time."""
MODES = ("full", "resumed")
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

    def connect(self) -> ssl.SSLSocket:
        """A connection whose request was answered."""
        plain = socket.create_connection(("127.0.0.1", self._port), TIMEOUT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = self._context.wrap_socket(plain, server_hostname="localhost")
        client.sendall(self._request)
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := client.recv(4096)):
                raise SystemExit(f"the server on {self._port} has closed before it answered: {head!r}")
            head += data
        if not head.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200")):
            raise SystemExit(f"the server on {self._port} answered {head!r}")
        return client

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


def shake_hands(program: Path, port: int, certificate: Path, count: int, mode: str) -> float:
    """`count` connections to the server on `port` by `program`: the share of their core that its clients used.

    In the mode "resumed" all of them resume one session. Raises SystemExit if one of them fails.
    """
    arguments = [str(number) for number in (port, count, AT_ONCE, TIMEOUT)]
    done = subprocess.run(
        [program, *arguments, str(certificate), mode], capture_output=True, text=True, timeout=2 * TIMEOUT, check=False
    )
    if done.returncode:
        raise SystemExit(f"{count} {mode} handshakes with the server on {port} failed: {done.stderr}")
    found = json.loads(done.stdout)
    return float(found["own_cpu"] / found["seconds"])


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
