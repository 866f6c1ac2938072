"""Attacks by agents with a valid token: links that misbehave, and invented identities.

Run by `attacker.py` in a process of its own. They speak the protocol over bare sockets, since no library would send
what they send. The last attack is the reverse: a gateway that attacks an agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

from fairlead.wire.codec import agent_codec, gateway_codec
from fairlead.wire.messages import (
    SUBPROTOCOL_MSGPACK,
    Ack,
    Bye,
    Chunk,
    Credit,
    End,
    Event,
    Hb,
    Hello,
    Message,
    Retry,
    Welcome,
)

from abuse.http_attacks import SOURCE, AttackScale, Ports
from abuse.victim import AGENT_TOKEN, upgrade_request
from support.scripted_server import accept, scripted

CODEC = agent_codec(SUBPROTOCOL_MSGPACK)
GATEWAY = gateway_codec(SUBPROTOCOL_MSGPACK, 1 << 20)
LINKS = 10
BLOCK = 64 << 10
"""Bytes of one write of a flood."""
BINARY, CONTINUATION, CLOSE, PING, FIN = 2, 0, 8, 9, 0x80


def frame(payload: bytes, first: int = FIN | BINARY) -> bytes:
    """A masked frame; a key of zeros leaves the payload as it is."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + b"\0\0\0\0" + payload


def server_frame(first: int, payload: bytes) -> bytes:
    """A frame as a gateway sends it, below 64 KiB."""
    size = len(payload)
    head = struct.pack("!BB", first, size) if size < 126 else struct.pack("!BBH", first, 126, size)
    return head + payload


def framed(message: Message) -> bytes:
    data = CODEC.encode(message)
    return frame(data if isinstance(data, bytes) else data.encode())


NONCE = re.compile(rb"\r\nfairlead-nonce: ([^\r]+)\r\n", re.IGNORECASE)


class UpgradeRefused(ConnectionError):
    """With the status of the answer."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.status = line.split()[1]


class RawLink:
    """One link over a bare socket. Raises UpgradeRefused when the upgrade is refused."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(
        cls, port: int, hello: Message | Callable[[str], Message], source: str = SOURCE, token: str = AGENT_TOKEN
    ) -> RawLink:
        """Says this hello, or the one that is made for the nonce of the answer."""
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), limit=4 << 20)
            writer.write(upgrade_request("127.0.0.1", token))
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in head.split(b"\r\n")[0]:
                writer.transport.abort()
                raise UpgradeRefused(head.split(b"\r\n")[0].decode())
            link = cls(reader, writer)
            if callable(hello):
                nonce = NONCE.search(head)
                hello = hello(nonce[1].decode() if nonce else "")
            writer.write(framed(hello))
            return link

    async def read_frame(self) -> tuple[int, bytes]:
        """The next frame of the gateway: its first octet and its payload."""
        first, size = await self.reader.readexactly(2)
        if size == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first, await self.reader.readexactly(size)

    async def welcomed(self) -> None:
        """Wait for the welcome. Raises ConnectionError when something else comes."""
        async with asyncio.timeout(10):
            first, payload = await self.read_frame()
        if first & 0x0F == CLOSE:
            raise ConnectionError(f"closed with {int.from_bytes(payload[:2], 'big')}")
        if not isinstance(message := CODEC.decode(payload), Welcome):
            raise ConnectionError(f"{type(message).__name__} in place of a welcome")

    async def close_code(self) -> int:
        """Read on until the gateway closes; returns its code, 1006 without a close frame."""
        try:
            while True:
                first, payload = await self.read_frame()
                if first & 0x0F == CLOSE:
                    return int.from_bytes(payload[:2], "big") if payload else 1005
        except (OSError, asyncio.IncompleteReadError):
            return 1006

    def abort(self) -> None:
        self.writer.transport.abort()


def _events() -> bytes:
    """A new id for each: an event that comes again is known already, and not stored."""
    return b"".join(framed(Event(id=f"e{random.getrandbits(60):x}", type="x", payload=b"1" * 100)) for _ in range(400))


KINDS: dict[str, Callable[[], bytes]] = {
    "hb": lambda: framed(Hb(ts=1)),
    "ping": lambda: frame(b"", FIN | PING),
    "unknown": lambda: frame(b"\x81\xa1t\x63"),  # a map with the type number 99, which is reserved
    "fragments": lambda: frame(b"\x81", BINARY) + frame(b"", CONTINUATION) * 500 + frame(b"\xa1t\x63", FIN),
    "credit": lambda: framed(Credit(id="nobody", bytes=1)),
    "chunks": lambda: framed(Chunk(id="nobody", n=0, kind="stdout", payload=b"x")),
    "acks": lambda: framed(Ack(id="nobody")) + framed(End(id="nobody", total=0)),
    "events": _events,
}


async def _flood(ports: Ports, scale: AttackScale, kind: str) -> Counter[str]:
    """Ten links that were welcomed send nothing else, as fast as they are read, and come back at once when they are
    closed."""
    one = KINDS[kind]()
    block = one * max(BLOCK // len(one), 1)
    tried: Counter[str] = Counter()
    end = time.monotonic() + scale.seconds

    async def flood(n: int) -> None:
        conn = 0
        while time.monotonic() < end:
            conn += 1
            try:
                link = await RawLink.dial(ports.link, Hello(agent=f"flood-{n}", boot=f"flood-{n}", conn=conn))
                await link.welcomed()
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                tried["not linked"] += 1
                await asyncio.sleep(0.2)
                continue
            tried["links"] += 1
            closing = asyncio.create_task(link.close_code())
            with contextlib.suppress(OSError, TimeoutError):
                while time.monotonic() < end and not closing.done():
                    link.writer.write(_events() if kind == "events" else block)
                    async with asyncio.timeout(max(end - time.monotonic(), 0.1)):
                        await link.writer.drain()
                    tried["KB"] += len(block) // 1000
            with contextlib.suppress(TimeoutError):
                tried[f"closed {await asyncio.wait_for(closing, 1)}"] += 1
            link.abort()

    await asyncio.gather(*(flood(n) for n in range(LINKS)))
    return tried


async def flood_hb(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Heartbeats."""
    return await _flood(ports, scale, "hb")


async def flood_ping(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Ping frames, which no handler ever sees."""
    return await _flood(ports, scale, "ping")


async def flood_unknown(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Messages of a reserved type, which are ignored."""
    return await _flood(ports, scale, "unknown")


async def flood_fragments(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Messages in 500 empty fragments."""
    return await _flood(ports, scale, "fragments")


async def flood_credit(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Credit for a stream that does not exist."""
    return await _flood(ports, scale, "credit")


async def flood_chunks(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Chunks of a command that does not exist."""
    return await _flood(ports, scale, "chunks")


async def flood_events(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Events of 100 octets, each to be stored."""
    return await _flood(ports, scale, "events")


async def partial_messages(ports: Ports, scale: AttackScale) -> Counter[str]:
    """300 links, each with a message of 1 MiB that lacks its last octet."""
    tried: Counter[str] = Counter()
    links: list[RawLink] = []
    almost = b"\x82\xff" + struct.pack("!Q", 1 << 20) + b"\0\0\0\0" + b"x" * ((1 << 20) - 1)

    async def send(link: RawLink) -> None:
        with contextlib.suppress(OSError):
            link.writer.write(almost)
            await link.writer.drain()
            tried["sent whole"] += 1

    for n in range(scale.count(300)):
        try:
            links.append(await RawLink.dial(ports.link, Hello(agent=f"partial-{n}", boot="b", conn=1)))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            tried["not linked"] += 1
    tried["linked"] = len(links)
    closed: list[int] = []

    async def wait_closed(link: RawLink) -> None:
        closed.append(await link.close_code())

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(scale.seconds):
            await asyncio.gather(*(send(link) for link in links), *(wait_closed(link) for link in links))
    tried.update(f"closed {code}" for code in closed)
    for link in links:
        link.abort()
    return tried


async def largest_conn(ports: Ports, scale: AttackScale) -> Counter[str]:
    """One hello with the largest `conn` of a boot; then the same boot with the number that is its turn."""
    tried: Counter[str] = Counter()
    for what, conn in (("first", 1), ("largest", (1 << 53) - 1), ("then the next", 2), ("and the next", 3)):
        link = await RawLink.dial(ports.link, Hello(agent="locked", boot="same", conn=conn))
        try:
            async with asyncio.timeout(5):
                first, payload = await link.read_frame()
                if first & 0x0F == CLOSE:
                    tried[f"{what}: closed {int.from_bytes(payload[:2], 'big')}"] += 1
                else:
                    tried[f"{what}: {type(CODEC.decode(payload)).__name__}"] += 1
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            tried[f"{what}: lost"] += 1
        finally:
            link.abort()
    return tried


async def ghosts(ports: Ports, scale: AttackScale) -> Counter[str]:
    """2,000 identities with as many facts as are allowed; each of them disconnects at once."""
    tried: Counter[str] = Counter()
    facts = {f"fact-{i:02}": "x" * 256 for i in range(64)}
    for n in range(scale.count(2_000)):
        try:
            link = await RawLink.dial(ports.link, Hello(agent=f"ghost-{n}", boot="b", conn=1, facts=facts))
            async with asyncio.timeout(5):
                first, payload = await link.read_frame()
            closed = first & 0x0F == CLOSE
            tried[f"closed {int.from_bytes(payload[:2], 'big')}" if closed else "welcomed"] += 1
            link.abort()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            tried["not linked"] += 1
            await asyncio.sleep(0.05)
    return tried


async def hostile_retry(ports: Ports, scale: AttackScale) -> Counter[str]:
    """A gateway that asks the agent to come back at once, each time that it has welcomed it."""
    tried: Counter[str] = Counter()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tried["connections"] += 1
        await accept(reader, writer, headers=b"Sec-WebSocket-Protocol: fairlead.v1.msgpack\r\n")
        await reader.read(4096)  # its hello
        welcome = Welcome(sid="s", gen=1, now=0, hb=25_000, retry=Retry(first=0, base=0, cap=0))
        for message in (welcome, Bye(code=4000, retry=0)):
            data = GATEWAY.encode(message)
            body = data if isinstance(data, bytes) else data.encode()
            writer.write(server_frame(FIN | BINARY, body))
        writer.write(server_frame(FIN | CLOSE, struct.pack("!H", 4000)))
        await reader.read()

    async with scripted(play) as port:
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead", "agent", "run", "--id", "victim", "--url", f"ws://127.0.0.1:{port}",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "FAIRLEAD_AGENT_TOKEN": AGENT_TOKEN},
        )  # fmt: skip
        try:
            await asyncio.sleep(scale.seconds)
        finally:
            agent.kill()
            await agent.wait()
    return tried
