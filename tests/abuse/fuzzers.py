"""Random input for the link and for HTTP: it must neither raise an exception in the node nor block it.

`attacker.py` runs them like the attacks, for the time of the scale; `run.py --soak` runs them for minutes. The input
depends only on the seed, which is part of the result.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter

from fairlead.wire.messages import Hello

from abuse.http_attacks import SOURCE, STATUS, AttackScale, Ports
from abuse.link_attacks import BINARY, FIN, KINDS, RawLink, frame
from abuse.victim import AGENT_TOKEN, PLATFORM_TOKEN, upgrade_request

WORKERS = 8


def _seed(tried: Counter[str]) -> random.Random:
    seed = int(os.environ.get("ABUSE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    tried[f"seed {seed}"] = 1
    return random.Random(seed)


def _broken(rng: random.Random, data: bytes) -> bytes:
    """`data` with some bytes changed, doubled or removed."""
    octets = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(octets)) if octets else 0
        match rng.randrange(4):
            case 0 if octets:
                octets[at] = rng.randrange(256)
            case 1:
                octets[at:at] = rng.randbytes(rng.randint(1, 8))
            case 2:
                del octets[at : at + rng.randint(1, 8)]
            case _:
                octets[at:at] = octets[at : at + rng.randint(1, 64)]
    return bytes(octets)


def _message(rng: random.Random) -> bytes:
    valid = rng.choice(list(KINDS.values()))()[:4096]
    match rng.randrange(4):
        case 0:
            return _broken(rng, valid)
        case 1:
            return frame(rng.randbytes(rng.randint(0, 300)))
        case 2:
            return frame(
                _broken(rng, valid[6:] or b"\x80"), rng.choice((FIN | BINARY, BINARY, FIN, FIN | 1, rng.randrange(256)))
            )
        case _:
            return valid


async def fuzz_link(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Random and broken frames and messages after a hello, and in place of one."""
    tried: Counter[str] = Counter()
    rng = _seed(tried)
    end = time.monotonic() + scale.seconds

    async def work(n: int) -> None:
        conn = 0
        while time.monotonic() < end:
            conn += 1
            try:
                link = await RawLink.dial(ports.link, Hello(agent=f"fuzz-{n}", boot=f"fuzz-{n}-{conn}", conn=1))
                tried["links"] += 1
                for _ in range(rng.randint(1, 50)):
                    link.writer.write(_message(rng))
                    tried["messages"] += 1
                    await link.writer.drain()
                async with asyncio.timeout(0.2):
                    tried[f"closed {await link.close_code()}"] += 1
            except TimeoutError:
                tried["left open"] += 1
            except (OSError, asyncio.IncompleteReadError):
                tried["cut"] += 1
                await asyncio.sleep(0.05)
            else:
                link.abort()

    await asyncio.gather(*(work(n) for n in range(WORKERS)))
    return tried


METHODS = ("GET", "POST", "DELETE", "PATCH", "PUT", "OPTIONS", "HEAD", "TRACE", "CONNECT", "\x00")
PATHS = (
    "/v1/link", "/v1/commands", "/v1/agents", "/v1/agents/healthy-0", "/v1/agents?limit=x&select=%ff", "/readyz",
    "/metrics", "/", "*", "/%00", "//",
)  # fmt: skip
BODIES = (b"", b"{}", b"[", b'{"agent": "healthy-0", "method": "hello"}', b"\xff" * 50)
TOKENS = (f"Bearer {PLATFORM_TOKEN}", f"Bearer {AGENT_TOKEN}", "", "Basic x")
HOSTS = ("Host: 127.0.0.1", "Host:", "host: localhost:1", "Host: a, b")
LENGTHS = ("Content-Length: {}", "Content-Length: -1", "Transfer-Encoding: chunked", "Accept: */*")
CONNECTIONS = (
    "Upgrade: websocket\r\nConnection: Upgrade", "Connection: close", "Connection: keep-alive, Upgrade",
    "Expect: 100-continue",
)  # fmt: skip


def _request(rng: random.Random) -> bytes:
    body = rng.choice(BODIES)
    headers = [
        f"Authorization: {rng.choice(TOKENS)}", rng.choice(HOSTS), rng.choice(LENGTHS).format(len(body)),
        rng.choice(CONNECTIONS),
    ]  # fmt: skip
    rng.shuffle(headers)
    line = f"{rng.choice(METHODS)} {rng.choice(PATHS)} HTTP/{rng.choice(('1.1', '1.1', '1.0', '2.0', '0.9'))}"
    return "\r\n".join([line, *headers, "", ""]).encode() + body


async def fuzz_http(ports: Ports, scale: AttackScale) -> Counter[str]:
    """Random and broken requests on all three ports, some of them several in one write."""
    tried: Counter[str] = Counter()
    rng = _seed(tried)
    end = time.monotonic() + scale.seconds

    async def work() -> None:
        while time.monotonic() < end:
            port = rng.choice((ports.link, ports.api, ports.admin))
            data = b"".join(
                rng.choice((_request(rng), _broken(rng, _request(rng)), _broken(rng, upgrade_request("127.0.0.1"))))
                for _ in range(rng.randint(1, 4))
            )
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(SOURCE, 0))
                writer.write(data)
                tried["requests"] += 1
                async with asyncio.timeout(0.3):
                    while answer := await reader.read(65_536):
                        for status in STATUS.findall(answer):
                            tried[status.decode()] += 1
            except (OSError, TimeoutError):
                pass
            else:
                writer.transport.abort()

    await asyncio.gather(*(work() for _ in range(WORKERS)))
    return tried
