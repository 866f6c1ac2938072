"""A bare HTTP client for the platform API: one keep-alive connection, so that the load costs less than the server."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence

TIMEOUT = 30.0
"""Seconds for one command and its whole stream."""


class ApiConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader = reader
        self._writer = writer
        self._token = token.encode()

    @classmethod
    async def open(cls, port: int, token: str) -> ApiConnection:
        return cls(*await asyncio.open_connection("127.0.0.1", port), token)

    async def command(self, agent: str) -> float:
        """Run one command and read its whole stream; seconds. Raises SystemExit unless it ended ok."""
        return await self.post(json.dumps({"agent": agent, "method": "bench"}).encode())

    async def post(self, body: bytes) -> float:
        """The same for the body of a command."""
        started = time.perf_counter()
        self._writer.write(
            b"POST /v1/commands HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\n"
            b"Accept: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%b" % (self._token, len(body), body)
        )
        answer = b""
        try:
            async with asyncio.timeout(TIMEOUT):
                while not answer.endswith(b"\r\n0\r\n\r\n"):
                    part = await self._reader.read(65536)
                    if not part:
                        break
                    answer += part
        except TimeoutError as e:
            raise SystemExit(f"the command {body!r} had no end within {TIMEOUT:g} s; so far: {answer!r}") from e
        took = time.perf_counter() - started
        if b'"state":"ok"' not in answer:
            raise SystemExit(f"the command {body!r} did not end ok: {answer!r}")
        return took

    def close(self) -> None:
        self._writer.close()


async def round_trips(
    port: int, token: str, agents: int, in_flight: int, count: int, prefixes: Sequence[str] = ("bench",)
) -> list[float]:
    """Seconds of `count` commands to random agents, sorted. Each prefix begins the ids of so many agents."""
    took: list[float] = []
    left = iter(range(count))

    async def caller() -> None:
        connection = await ApiConnection.open(port, token)
        for _ in left:
            agent = f"{random.choice(prefixes)}-{random.randrange(agents)}"
            took.append(await connection.command(agent))
        connection.close()

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return sorted(took)


async def posts(port: int, token: str, in_flight: int, bodies: Sequence[bytes]) -> list[float]:
    """Seconds of the commands with these bodies, sorted."""
    took: list[float] = []
    waiting = iter(bodies)

    async def caller() -> None:
        connection = await ApiConnection.open(port, token)
        took.extend([await connection.post(body) for body in waiting])
        connection.close()

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return sorted(took)
