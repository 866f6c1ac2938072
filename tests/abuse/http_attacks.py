"""Attacks on the three ports before anybody has shown a valid token.

Run by `attacker.py` in a process of its own. Each is given the victim's ports and an `AttackScale`, is bounded in
count and in time, and returns what it counted. All of them come from an address of their own, unless it says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from dataclasses import dataclass

from abuse.victim import PLATFORM_TOKEN, status_of, upgrade_request

SOURCE = "127.0.0.66"
OTHERS = "127.0.0.67"
"""The address of a well-behaved client that connects at the same time."""
GUESSERS = 400
"""Connections at once: an answer that is held back for 2 s leaves each of them a try every 2 s, and fewer would measure
their own patience. More than half of `unauthenticated_limit` would only close each other."""
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass(frozen=True, slots=True)
class AttackScale:
    share: float
    """1 is the size that is published; a test plays a small share of it."""
    seconds: float
    """How long the attack may go on."""

    def count(self, full: int) -> int:
        return max(int(full * self.share), 1)


@dataclass(frozen=True, slots=True)
class Ports:
    link: int
    api: int
    admin: int


async def _connect(port: int, source: str = SOURCE) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def pipelined_gets(ports: Ports, scale: AttackScale) -> Counter[str]:
    """84 MB of pipelined GETs on all ports at once."""
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    total = scale.count(84_000_000)
    tried: Counter[str] = Counter()

    async def flood(name: str, port: int) -> None:
        reader, writer = await _connect(port)
        block = request * (65_536 // len(request))

        async def read() -> None:
            while data := await reader.read(1 << 20):
                tried[f"{name} answers"] += len(STATUS.findall(data))

        reading = asyncio.create_task(read())
        with contextlib.suppress(OSError):
            sent = 0
            while sent < total:
                writer.write(block)
                await writer.drain()
                sent += len(block)
                tried[f"{name} KB"] = sent // 1000
        await asyncio.wait({reading}, timeout=1)
        reading.cancel()
        writer.transport.abort()

    floods = [flood(name, getattr(ports, name)) for name in ("link", "api", "admin")]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(scale.seconds):
            await asyncio.gather(*floods, return_exceptions=True)
    return tried


async def _ends(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Read whatever comes in that time; returns whether the connection ended in it."""
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(4096):
                pass
    except TimeoutError:
        return False
    return True


async def _held(
    ports: Ports, scale: AttackScale, first: bytes, every: float, more: bytes, full: int = 3000
) -> Counter[str]:
    """Connections in all, a third to each port: each sends `first`, then `more` every so many seconds."""
    tried: Counter[str] = Counter()

    async def one(port: int) -> None:
        try:
            reader, writer = await _connect(port)
        except OSError:
            tried["not connected"] += 1
            return
        tried["connected"] += 1
        try:
            writer.write(first)
            while True:
                if await _ends(reader, every):
                    tried["cut"] += 1
                    return
                writer.write(more)
        except OSError:
            tried["cut"] += 1
        finally:
            writer.transport.abort()

    tasks = []
    for i in range(scale.count(full)):
        tasks.append(asyncio.create_task(one((ports.link, ports.api, ports.admin)[i % 3])))
        if i % 50 == 49:
            await asyncio.sleep(0.05)
    await asyncio.wait(tasks, timeout=scale.seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return tried


async def idle_connections(ports: Ports, scale: AttackScale) -> Counter[str]:
    """3,000 connections that send one request, wait, and send another just before they would be closed."""
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    return await _held(ports, scale, request, 5.0, request)


async def silent_connections(ports: Ports, scale: AttackScale) -> Counter[str]:
    """3,000 connections that send nothing."""
    return await _held(ports, scale, b"", 60.0, b"")


async def slow_heads(ports: Ports, scale: AttackScale) -> Counter[str]:
    """3,000 connections that send a header line now and then (slowloris)."""
    return await _held(ports, scale, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", 2.0, b"X-Slow: 1\r\n")


async def slow_bodies(ports: Ports, scale: AttackScale) -> Counter[str]:
    """1,000 connections that announce a body and send a byte of it now and then."""
    head = b"POST /v1/commands HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"
    return await _held(ports, scale, head, 2.0, b"x", full=1000)


def agents_request(token: str) -> bytes:
    return f"GET /v1/agents HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


async def wrong_tokens(ports: Ports, scale: AttackScale) -> Counter[str]:
    """12,000 attempts with wrong tokens, as fast as they are answered, on the link port and the API."""
    tried: Counter[str] = Counter()
    left = scale.count(12_000)
    end = time.monotonic() + scale.seconds

    async def guess() -> None:
        nonlocal left
        while left > 0 and time.monotonic() < end:
            left -= 1
            if left % 2:
                status = await status_of(ports.link, upgrade_request("127.0.0.1", f"wrong-{left}"), SOURCE)
            else:
                status = await status_of(ports.api, agents_request(f"wrong-{left}"), SOURCE)
            tried[str(status or "lost")] += 1

    await asyncio.gather(*(guess() for _ in range(GUESSERS)))
    # A right token from the same address: somebody behind the same NAT.
    tried[f"then right on link: {await status_of(ports.link, upgrade_request('127.0.0.1'), SOURCE)}"] += 1
    tried[f"then right on api: {await status_of(ports.api, agents_request(PLATFORM_TOKEN), SOURCE)}"] += 1
    return tried


async def accept_bucket(ports: Ports, scale: AttackScale) -> Counter[str]:
    """30 loops connect and disconnect with a valid token; meanwhile another address tries 15 times."""
    tried: Counter[str] = Counter()
    end = time.monotonic() + scale.seconds

    async def loop() -> None:
        while time.monotonic() < end:
            status = await status_of(ports.link, upgrade_request("127.0.0.1"), SOURCE)
            tried[f"loops {status or 'lost'}"] += 1

    async def other() -> None:
        for _ in range(15):
            await asyncio.sleep(scale.seconds / 16)
            tried[f"others {await status_of(ports.link, upgrade_request('127.0.0.1'), OTHERS) or 'lost'}"] += 1

    await asyncio.gather(other(), *(loop() for _ in range(30)))
    return tried


def _shape(**changes: str | None) -> bytes:
    """An upgrade with headers changed or left out, and with another request line where `line` is given."""
    line = changes.pop("line", None) or "GET /v1/link HTTP/1.1"
    head = upgrade_request("127.0.0.1").decode().split("\r\n")[1:-2]
    headers = dict(one.split(": ", 1) for one in head)
    for name, value in changes.items():
        if value is None:
            headers.pop(name)
        else:
            headers[name.replace("_", "-")] = value
    return (line + "\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n").encode()


SHAPES = {
    "length and chunked": _shape(Content_Length="5", Transfer_Encoding="chunked"),
    "a body": _shape(Content_Length="5"),
    "encoded path": _shape(line="GET /v1/%6cink HTTP/1.1"),
    "HTTP/1.0": _shape(line="GET /v1/link HTTP/1.0"),
    "no Host": _shape(Host=None),
    "two Hosts": _shape().replace(b"Upgrade: ", b"Host: other\r\nUpgrade: ", 1),
    "head of 120 KB": _shape(X_Large="x" * 120_000),
    "foreign Host": _shape(Host="attacker.example"),
    "foreign Origin": _shape(Origin="http://attacker.example"),
}


async def malformed_upgrades(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Upgrades with a valid token that a strict server refuses, each in one write."""
    tried: Counter[str] = Counter()
    for name, request in SHAPES.items():
        tried[f"{name}: {await status_of(ports.link, request, SOURCE) or 'lost'}"] += 1
    return tried


async def rebinding(ports: Ports, scale: AttackScale) -> Counter[str]:
    """A web page that has the browser post a command: foreign Host and Origin, and the token that everybody knows."""
    body = b'{"agent": "healthy-0", "method": "hello"}'
    tried: Counter[str] = Counter()
    for what, headers in (
        ("foreign Host and Origin", "Host: attacker.example:8081\r\nOrigin: http://attacker.example:8081\r\n"),
        ("foreign Host", "Host: attacker.example:8081\r\n"),
        ("foreign Origin", "Host: 127.0.0.1\r\nOrigin: http://attacker.example\r\n"),
    ):
        head = (
            f"POST /v1/commands HTTP/1.1\r\n{headers}Authorization: Bearer {PLATFORM_TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        tried[f"{what}: {await status_of(ports.api, head.encode() + body, SOURCE) or 'lost'}"] += 1
    return tried
