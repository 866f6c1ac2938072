"""One link of an agent, seen from a gateway that does exactly what the test says.

Made by `Gateway` for each connection. What the agent says is judged by the gateway's own state machine, so that a test
fails when the agent breaks the protocol (a gap, a chunk beyond the credit, anything before welcome), even where the
test looks at something else. It decides nothing by itself: what is stored, granted and closed is said by the test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

import msgspec
import websockets
from websockets.asyncio.server import ServerConnection

from fairlead.errors import ProtocolViolation
from fairlead.wire.codec import Codec
from fairlead.wire.gateway_link import Action
from fairlead.wire.gateway_stream import GatewayStream
from fairlead.wire.messages import (
    WINDOW,
    Ack,
    Bye,
    Cancel,
    Caps,
    Chunk,
    Cmd,
    Credit,
    Drain,
    End,
    Event,
    FromAgent,
    Hb,
    Hello,
    Limits,
    Message,
    Retry,
    Welcome,
)

from support.wire.windowed_link import WindowedLink

TIMEOUT = 20.0
"""Seconds for anything that must happen: the machine may be busy with other tests."""
SOON = Retry(first=20, base=20, cap=100)
"""A policy for tests that do not look at it."""
NEVER = Retry(first=600_000, base=600_000, cap=600_000)
"""A policy under which a test that waits for it does not end in time (but for one draw in 30)."""

M = TypeVar("M", bound=Message)


class WelcomeOptions(TypedDict, total=False):
    """The arguments of `Link.welcome`."""

    hb: int
    have: dict[str, int]
    retry: Retry
    window: int
    resumed: bool
    facts: bool


class Link:
    """One connection of the agent, from the gateway's side. What was heard stays in `heard` with its time."""

    def __init__(self, socket: ServerConnection, codec: Codec[FromAgent]) -> None:
        self.socket = socket
        self.codec = codec
        self.heard: list[tuple[float, FromAgent]] = []
        self.violation: ProtocolViolation | None = None
        self.close_code: int | None = None
        """What the agent's close frame said; 1006 when there was none."""
        self.answers = True
        """Heartbeats are answered."""
        self.stores = True
        """Messages get their receipt at once, and their credit back."""
        self.grants = True
        self.state = WindowedLink()
        self._unstored: deque[tuple[Message, Action]] = deque()
        self._news = asyncio.Event()

    # -- what the agent said -----------------------------------------------------------------------

    async def read(self) -> None:
        """Take in everything until the connection ends."""
        try:
            async for data in self.socket:
                assert isinstance(data, bytes | str)
                await self._take(data)
        except websockets.ConnectionClosed:
            pass
        finally:
            received = self.socket.protocol.close_rcvd
            self.close_code = received.code if received is not None else 1006
            self._news.set()

    async def _take(self, data: bytes | str) -> None:
        try:
            message = self.codec.decode(data)
            act = self.state.receive(message)
        except ProtocolViolation as violation:
            self.violation = violation
            await self.socket.close(violation.close_code, violation.message[:100])
            return
        if message is None:
            return
        self.heard.append((time.monotonic(), message))
        if act is Action.ANSWER and isinstance(message, Hb) and self.answers:
            await self.send(Hb(echo=message.ts))
        if isinstance(message, Ack | Chunk | End) or (isinstance(message, Event) and message.qos == 1):
            self._unstored.append((message, act))
            if isinstance(message, End):
                self.state.ended(message.id)
            if self.stores:
                await self.store(len(self._unstored))
        self._news.set()

    @property
    def unstored(self) -> int:
        """Numbered messages without a receipt."""
        return len(self._unstored)

    async def store(self, count: int) -> None:
        """Send the receipt for the next `count` messages, and grant their credit again."""
        granted: list[Credit] = []
        for _ in range(count):
            message, act = self._unstored.popleft()
            if isinstance(message, Chunk) and act is Action.STORE and self.grants:
                credit = self.state.repay(message.id, len(message.payload))
                if credit is not None:
                    granted.append(credit)
        await self.send(self.state.store(count), *granted)

    def of(self, kind: type[M], id: str | None = None) -> list[M]:
        """All messages of `kind` so far, of one stream if it is named."""
        return [m for _, m in self.heard if isinstance(m, kind) and (id is None or getattr(m, "id", None) == id)]

    def output(self, id: str, kind: str = "stdout") -> bytes:
        return b"".join(c.payload for c in self.of(Chunk, id) if c.kind == kind)

    def rows(self, id: str) -> list[Any]:
        return [json.loads(c.payload) for c in self.of(Chunk, id) if c.kind == "row"]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is looked at whenever something was heard."""
        try:
            async with asyncio.timeout(TIMEOUT):
                while not condition():
                    assert self.close_code is None, f"closed with {self.close_code}; last heard: {self.last()}"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited {TIMEOUT:g} s in vain; last heard: {self.last()}") from None

    def last(self) -> str:
        """The last things heard, for a failure's message."""
        return " · ".join(repr(m)[:300] for _, m in self.heard[-5:])

    async def expect(self, kind: type[M], id: str | None = None) -> M:
        """The first message of `kind` on this link (of that stream), now or when it comes."""
        await self.until(lambda: bool(self.of(kind, id)))
        return self.of(kind, id)[0]

    async def end(self, id: str) -> End:
        return await self.expect(End, id)

    async def closed(self) -> int:
        """Wait until the agent has closed; returns the code it gave."""
        await self.until(lambda: self.close_code is not None)
        assert self.close_code is not None
        return self.close_code

    # -- what the gateway says ---------------------------------------------------------------------

    async def send(self, *messages: Message) -> None:
        for message in messages:
            try:
                await self.socket.send(self.codec.encode(message))
            except websockets.ConnectionClosed:
                return

    async def welcome(
        self,
        *,
        hb: int = 25_000,
        have: dict[str, int] | None = None,
        retry: Retry = SOON,
        window: int = WINDOW,
        resumed: bool = False,
        facts: bool = True,
    ) -> Hello:
        """Wait for hello and answer it; streams named in `have` are open again. With `facts` those
        that change are taken. Returns the hello."""
        hello = await self.expect(Hello)
        self.state.welcomed()
        self.state.window = window
        for command, n in (have or {}).items():
            self.state.opened(command, n, hello.have.get(command, 0))
        limits = Limits(window=window)
        await self.send(
            Welcome(
                sid="sid",
                gen=hello.conn,
                now=0,
                hb=hb,
                have=have or {},
                retry=retry,
                limits=limits,
                resumed=resumed,
                caps=Caps(facts=facts),
            )
        )
        return hello

    async def command(
        self,
        id: str,
        method: str,
        arguments: object = None,
        *,
        deadline: int = 60_000,
        payload: bytes | None = None,
        **more: object,
    ) -> GatewayStream:
        """Send a cmd; returns its stream as this link sees it."""
        stream = self.state.stream(id) or self.state.opened(id)
        if payload is None:
            payload = json.dumps({} if arguments is None else arguments).encode()
        command = Cmd(id=id, method=method, payload=payload, deadline=deadline, credit=self.state.window)
        await self.send(msgspec.structs.replace(command, **more))
        return stream

    async def feed(self, id: str, *parts: bytes) -> None:
        """Input for a command, behind what it got on this link."""
        stream = self.state.stream(id)
        assert stream is not None
        for part in parts:
            await self.send(Chunk(id=id, n=stream.input_next, kind="stdin", payload=part))
            stream.fed(len(part))

    async def feed_end(self, id: str) -> None:
        stream = self.state.stream(id)
        assert stream is not None
        await self.send(End(id=id, total=stream.input_next))

    async def cancel(self, id: str) -> None:
        await self.send(Cancel(id=id))

    async def drain(self, slot: int, retry: Retry | None = None) -> None:
        await self.send(Drain(why="rebalance", slot=slot, retry=retry))

    async def close(self, code: int, retry: int | None = None) -> None:
        """Say bye and close, as a gateway does."""
        self.state.closed()
        await self.send(Bye(code=code, retry=retry))
        await self.socket.close(code)

    async def cut(self) -> None:
        """Cut the connection without a close frame."""
        self.socket.transport.abort()
        await self.until(lambda: self.close_code is not None)
