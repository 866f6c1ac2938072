"""A WebSocket client of bytes that shares no code with what it tests.

It speaks frames as literal bytes: its encoder is a second, independent reading of RFC 6455.
"""

from __future__ import annotations

import asyncio
import base64
import os

TIMEOUT = 20.0
"""Seconds for anything that must happen: the machine may be busy with other tests."""

Frame = tuple[int, bytes]


class RawClient:
    """A WebSocket client of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}

    @staticmethod
    def encode(first: int, payload: bytes = b"", mask: bytes | None = None) -> bytes:
        mask = os.urandom(4) if mask is None else mask
        size = len(payload)
        if size <= 125:
            head = bytes([first, 0x80 | size])
        elif size <= 0xFFFF:
            head = bytes([first, 0x80 | 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([first, 0x80 | 127]) + size.to_bytes(8, "big")
        return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))

    @staticmethod
    def request(path: str = "/", **headers: str) -> bytes:
        key = base64.b64encode(os.urandom(16)).decode()
        fields = {
            "Host": "test",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
        } | {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"GET {path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields.items() if v)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, first: int, payload: bytes = b"") -> None:
        self.writer.write(self.encode(first, payload))

    async def answer(self) -> int:
        """Read the head of the answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), TIMEOUT)
        status, *lines = head.decode().rstrip().split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        return self.status

    async def body(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), TIMEOUT)

    async def frame(self) -> Frame | None:
        """The next frame, None at the end of the stream."""
        try:
            async with asyncio.timeout(TIMEOUT):
                first, second = await self.reader.readexactly(2)
                assert second < 128, "a server does not mask"
                size = second
                if second > 125:
                    size = int.from_bytes(await self.reader.readexactly(2 if second == 126 else 8), "big")
                return first, await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None

    async def expect_frame(self) -> Frame:
        """The next frame; the stream must not end."""
        frame = await self.frame()
        assert frame is not None, "the server has ended the stream"
        return frame

    async def frames(self) -> list[Frame]:
        """Everything until the server ends the stream."""
        found = []
        while (frame := await self.frame()) is not None:
            found.append(frame)
        return found

    def end(self) -> None:
        self.writer.close()
