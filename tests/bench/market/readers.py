"""The clients of the market benchmark: they keep quotes and when they arrived, speak Socket.IO, or do not read at all.

One client for all servers, so that the load costs the same: Socket.IO is spoken in the few packets that it needs over
a WebSocket (Engine.IO 4).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import time

from fairlead.carrier.client import connect
from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel

SUBPROTOCOL = "fairlead.v1.msgpack"
STAMP = struct.Struct("<Hd")
"""How a binary quote begins: stock and time of the tick."""
OPENED, PING, CONNECTED, EVENT, BINARY_EVENT = "0", "2", "40", "42", "45"
"""How packets of Engine.IO and Socket.IO begin."""


class QuoteReader:
    """Keeps the quotes of one client and when each arrived; all have arrived once `done` is set.

    They are decoded by `latencies`, when nothing is being measured: the clients share one processor, and a quote that
    waits there for others to be decoded would count as late.
    """

    def __init__(self) -> None:
        self.arrived: list[tuple[float, bytes | str]] = []
        self.expected = 0
        self.ready = asyncio.Event()
        self.done = asyncio.Event()
        self._connection: Connection | None = None

    def ask(self, push: dict[str, float | bool]) -> None:
        assert self._connection is not None
        self._connection.send(json.dumps({"push": push}))

    def expect(self, count: int) -> None:
        self.arrived, self.expected = [], count
        self.done.clear()

    def latencies(self) -> list[float]:
        """Seconds from the time of its tick to the arrival of each quote."""
        return [at - self.time_of_tick(message) for at, message in self.arrived]

    @staticmethod
    def time_of_tick(message: bytes | str) -> float:
        found: float = json.loads(message)["t"] if isinstance(message, str) else STAMP.unpack_from(message)[1]
        return found

    def close(self) -> None:
        assert self._connection is not None
        self._connection.close()

    def on_open(self, connection: Connection) -> None:
        self._connection = connection
        self.ready.set()

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        self.arrived.append((time.monotonic(), message))
        if len(self.arrived) == self.expected:
            self.done.set()

    def on_close(self, connection: Connection, code: int, reason: str) -> None: ...
    def on_silence(self, connection: Connection) -> None: ...
    def on_writable(self, connection: Connection) -> None: ...
    def on_overflow(self, connection: Connection) -> None: ...


class SocketIOReader(QuoteReader):
    """The same over Socket.IO."""

    @staticmethod
    def time_of_tick(message: bytes | str) -> float:
        if isinstance(message, str):
            found: float = json.loads(message[len(EVENT) :])[1]["t"]
            return found
        return QuoteReader.time_of_tick(message)

    def ask(self, push: dict[str, float | bool]) -> None:
        assert self._connection is not None
        self._connection.send(EVENT + json.dumps(["push", {"push": push}]))

    def on_open(self, connection: Connection) -> None:
        self._connection = connection

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        if not isinstance(message, str) or message.startswith(EVENT):
            super().on_message(connection, message)
        elif message.startswith(BINARY_EVENT):
            return  # its octets are the next message
        elif message == PING:
            connection.send("3")
        elif message.startswith(CONNECTED):
            self.ready.set()
        elif message.startswith(OPENED):
            connection.send(CONNECTED)


async def reader(port: int, name: str, timer_wheel: TimerWheel) -> QuoteReader:
    """Connected, and ready to be pushed to."""
    client = SocketIOReader() if speaks_socketio(name) else QuoteReader()
    await connect(
        f"ws://127.0.0.1:{port}{path(name)}", client, timer_wheel=timer_wheel, subprotocols=(SUBPROTOCOL,)
    )  # fmt: skip
    async with asyncio.timeout(30):
        await client.ready.wait()
    return client


def speaks_socketio(name: str) -> bool:
    return name in ("socketio", "socket.io")


def path(name: str) -> str:
    return "/socket.io/?EIO=4&transport=websocket" if speaks_socketio(name) else "/v1/link"


def stalled(port: int, name: str) -> socket.socket:
    """A client that has connected and never reads again. Its receive buffer is small, so that the server feels it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", port))
    client.sendall(
        f"GET {path(name)} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
    )
    head = b""
    while b"\r\n\r\n" not in head:
        if not (part := client.recv(1)):
            raise SystemExit(f"{name} refused a client: {head!r}")
        head += part
    if speaks_socketio(name):
        mask = os.urandom(4)
        client.sendall(b"\x81\x82" + mask + bytes(octet ^ key for octet, key in zip(b"40", mask, strict=False)))
    return client
