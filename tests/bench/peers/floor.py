"""The floor of uvloop: `floor.py PORT`, one `asyncio.Protocol` that answers as servers.py does and checks nothing.

It shows what uvloop's transport and a few lines of Python cost; it is no server for anything else. `floor.c` is the
floor of the kernel.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import signal
import sys
from typing import cast

import uvloop

from bench.peers.servers import BACKLOG, SUBPROTOCOL, answer, collect

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE = 1, 2, 8


class Floor(asyncio.Protocol):
    __slots__ = ("_data", "_open", "_transport")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._data, self._open = b"", False

    def data_received(self, data: bytes) -> None:
        if self._data:
            data = self._data + data
        self._data = b""
        if not self._open:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._data = head
                return
            self._open = True
            self._transport.write(welcome(head))
        self._data = self._answer(data)

    def _answer(self, data: bytes) -> bytes:
        """Answers each whole frame; returns what is left."""
        while len(data) >= 6:
            size, head = data[1] & 127, 2
            if size == 126:
                size, head = int.from_bytes(data[2:4]), 4
            if len(data) < (end := head + 4 + size):
                break
            mask = int.from_bytes((data[head : head + 4] * (size // 4 + 1))[:size])
            payload = (int.from_bytes(data[head + 4 : end]) ^ mask).to_bytes(size)
            opcode, data = data[0] & 15, data[end:]
            if opcode == TEXT:
                payload = str(answer(payload.decode())).encode()
            length = bytes((len(payload),)) if len(payload) < 126 else b"\x7e" + len(payload).to_bytes(2)
            self._transport.write(bytes((0x80 | opcode,)) + length + payload)
            if opcode == CLOSE:
                self._transport.close()
        return data


def welcome(head: bytes) -> bytes:
    key = head.lower().index(b"sec-websocket-key:") + 18
    digest = hashlib.sha1(head[key:].partition(b"\r\n")[0].strip() + GUID).digest()
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n"
        b"Sec-WebSocket-Protocol: %b\r\n\r\n" % (base64.b64encode(digest), SUBPROTOCOL.encode())
    )


async def serve(port: int) -> None:
    await asyncio.get_running_loop().create_server(Floor, "127.0.0.1", port, backlog=BACKLOG)
    await asyncio.Event().wait()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, collect)
    uvloop.run(serve(int(sys.argv[1])))
