"""HTTP/1.1 without a library: sends one request and reads the unmodified answer.

Used by `api_checks` and `link_checks`. A library would retry, follow redirects and interpret; the doctor needs to see
what is between this machine and the gateway.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlead.cli.doctor.checks import STEP_TIMEOUT
from fairlead.errors import ConnectionRefused
from fairlead.wire.websocket.handshake import Response, parse_response

if TYPE_CHECKING:
    from fairlead.cli.doctor.endpoint_checks import EndpointChecks

BODY_LIMIT = 64 << 10
"""Bytes of a body that are read."""


async def get(server: EndpointChecks, path: str) -> tuple[Response, bytes]:
    """A plain GET. Raises OSError, TimeoutError, ConnectionRefused."""
    reader, writer = await server.open()
    try:
        async with asyncio.timeout(STEP_TIMEOUT):
            host = f"{server.host}:{server.port}"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return await read_answer(reader, BODY_LIMIT)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader, limit: int) -> tuple[Response, bytes]:
    """The head of an answer and the first `limit` bytes of its body. Raises ConnectionRefused if it is cut off."""
    data = b""
    while (answer := parse_response(data)) is None:
        part = await reader.read(limit)
        if not part:
            raise ConnectionRefused("the connection was closed before the answer")
        data += part
    head, body = answer
    length = head.headers.get("content-length", "")
    # Do not read until the connection closes: a proxy may keep it open in spite of the request's `Connection: close`.
    size = 0 if head.status == 101 else min(limit, int(length)) if length.isdigit() else limit
    while len(body) < size and (part := await reader.read(limit)):
        body += part
    return head, body
