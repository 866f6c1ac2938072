"""Simulated agents on the small client: they send what a real agent sends, at some 2 KB each.

Used by the benchmark and by tests that need many agents. They greet with six facts, answer every command with an
ack, one chunk and an end, and are silent otherwise.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from fairlead.carrier.client import connect
from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Ack, Chunk, Cmd, End, Hello, Welcome

CODEC = agent_codec(SUBPROTOCOL_MSGPACK)
FACTS = {"os": "linux", "arch": "x86_64", "kernel": "6.1.0", "env": "bench", "zone": "eu-1a", "sdk": "0.1.0"}
T = TypeVar("T")

SOURCES = [f"127.0.0.{n}" for n in range(2, 10)]
"""Source addresses in turn: one pair of address and port has too few ports for tens of thousands."""


class SimulatedAgent:
    """One agent; `welcomed` is set once and then dropped, so that an idle one stays small."""

    __slots__ = ("answered", "conn", "connection", "name", "welcomed")

    def __init__(self, name: str, conn: int) -> None:
        self.name = name
        self.conn = conn
        self.connection: Connection | None = None
        self.answered = 0
        """Commands."""
        self.welcomed: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()

    def on_open(self, connection: Connection) -> None:
        self.connection = connection
        connection.send(CODEC.encode(Hello(agent=self.name, boot="bench", conn=self.conn, facts=FACTS)))

    def on_message(self, connection: Connection, data: bytes | str) -> None:
        message = CODEC.decode(data)
        if isinstance(message, Cmd):
            self.answered += 1
            connection.send(CODEC.encode(Ack(id=message.id)))
            connection.send(CODEC.encode(Chunk(id=message.id, n=0, kind="stdout", payload=b"x" * 64)))
            connection.send(CODEC.encode(End(id=message.id, total=1, payload=b'{"exit_code":0}')))
        elif isinstance(message, Welcome) and self.welcomed is not None:
            self.welcomed.set_result(None)
            self.welcomed = None

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.connection = None
        if self.welcomed is not None and not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError(f"closed with {code} {reason} before welcome"))

    def on_silence(self, connection: Connection) -> None: ...
    def on_writable(self, connection: Connection) -> None: ...
    def on_overflow(self, connection: Connection) -> None: ...


class SimulatedFleet:
    """Agents of one process, held by the `timer_wheel` of the caller. `trust` is for wss://."""

    def __init__(self, url: str, token: str, timer_wheel: TimerWheel, trust: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._trust = trust
        self._headers = (("Authorization", f"Bearer {token}"),)
        self._timer_wheel = timer_wheel
        self._conn = 0
        self.agents: list[SimulatedAgent] = []

    @property
    def linked(self) -> int:
        return sum(agent.connection is not None for agent in self.agents)

    @property
    def answered(self) -> int:
        """Commands that the agents received which have not left."""
        return sum(agent.answered for agent in self.agents)

    async def join(self, count: int, at_once: int = 64, prefix: str = "bench") -> None:
        """Connect `count` more agents and wait until each is welcomed."""
        self._conn += 1
        start = len(self.agents)
        new = [SimulatedAgent(f"{prefix}-{start + i}", self._conn) for i in range(count)]
        self.agents += new
        await each(new, self._join, at_once)

    async def _join(self, agent: SimulatedAgent, source: str) -> None:
        welcomed = agent.welcomed
        assert welcomed is not None
        await connect(
            self._url, agent, timer_wheel=self._timer_wheel, subprotocols=(SUBPROTOCOL_MSGPACK,), headers=self._headers,
            ssl=self._trust, local_address=source,
        )  # fmt: skip
        async with asyncio.timeout(30):
            await welcomed

    async def leave(self) -> None:
        """Close all links and wait until they are closed."""
        for agent in self.agents:
            if agent.connection is not None:
                agent.connection.close()
        async with asyncio.timeout(60):
            while self.linked:  # nothing tells of the last
                await asyncio.sleep(0.05)
        self.agents.clear()


async def each(items: Iterable[T], act: Callable[[T, str], Awaitable[None]], at_once: int) -> None:
    """`act(item, source address)` for all items, `at_once` at a time."""
    waiting = iter(items)
    sources = itertools.cycle(SOURCES)

    async def work() -> None:
        for item in waiting:
            await act(item, next(sources))

    await asyncio.gather(*(work() for _ in range(at_once)))
