"""Servers that push market data, one a process: `market.py NAME PORT`.

A client asks with `{"push": {"stocks": …, "ticks": …, "interval": seconds, "binary": …}}`; the server then sends the
quote of each stock (open, high, low, close, volume, and the time of the tick) to each client, tick by tick. The time of
a tick is when it began, or shortly after it was due if the server was late. So the latency of a quote includes the time
that it waits for others of its tick to be encoded and sent. Each server uses what its library has for one message to
many. fairlead, epoll: our carrier, each frame encoded once. autobahn: prepared messages. socketio: python-socketio on
uvicorn, `emit`. `node/market.js` does the same on Node.js. The servers in Python encode JSON by msgspec, as our codec
does; python-socketio has its own encoder.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

if TYPE_CHECKING:  # other servers run where Fairlead is not installed
    from fairlead.carrier.listener import Connection

SUBPROTOCOL = "fairlead.v1.msgpack"
QUOTE = struct.Struct("<Hd5d")
"""Stock, time of the tick, open, high, low, close, volume."""


def quote(stock: int, tick: int, at: float) -> dict[str, float]:
    begin = 100.0 + stock
    return {
        "s": stock, "t": at, "o": begin, "h": begin + 1.25, "l": begin - 1.25, "c": begin + 0.5,
        "v": 1000.0 + tick,
    }  # fmt: skip


def encoded(stock: int, tick: int, at: float, binary: bool) -> bytes:
    data = quote(stock, tick, at)
    return QUOTE.pack(*data.values()) if binary else msgspec.json.encode(data)


TIMER = 0.0015
"""Seconds that a tick may begin after it was due and count as punctual: timers of event loops have milliseconds."""
Send = Callable[[int, int, float, bool], Awaitable[None] | None]
"""Called with the stock, the tick, its time, and whether the quote is binary."""


async def ticks(asked: dict[str, Any], send: Send) -> None:
    """Send all stocks at each tick, by the clock."""
    begin = time.monotonic()
    for tick in range(asked["ticks"]):
        due = begin + tick * asked["interval"]
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        at = min(time.monotonic(), due + TIMER)
        for stock in range(asked["stocks"]):
            sending = send(stock, tick, at, asked["binary"])
            if sending is not None:
                await sending


class Pushes:
    """The pushes under way: an event loop holds its tasks weakly."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, message: bytes | str) -> None:
        task = asyncio.get_running_loop().create_task(ticks(json.loads(message)["push"], self._send))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Quotes:
    """One listener for all connections of our carrier."""

    def __init__(self) -> None:
        self._connections: dict[int, Connection] = {}
        self._pushes = Pushes(self._push)

    def _push(self, stock: int, tick: int, at: float, binary: bool) -> None:
        from fairlead.wire.websocket import frames

        frame = frames.encode(frames.FIN | (frames.BINARY if binary else frames.TEXT), encoded(stock, tick, at, binary))
        for connection in list(self._connections.values()):
            connection.write(frame)

    def on_open(self, connection: Connection) -> None:
        self._connections[id(connection)] = connection

    def on_message(self, connection: object, message: bytes | str) -> None:
        self._pushes.begin(message)

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self._connections.pop(id(connection), None)

    def on_silence(self, connection: object) -> None: ...
    def on_writable(self, connection: object) -> None: ...
    def on_overflow(self, connection: object) -> None: ...


async def fairlead(port: int, epoll: bool) -> None:
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket

    from fairlead.carrier.attach import attach
    from fairlead.carrier.http_server.uvicorn_server import Server, config
    from fairlead.carrier.timer_wheel import TimerWheel

    quotes = Quotes()

    async def enter(websocket: WebSocket) -> None:
        await attach(websocket, quotes, SUBPROTOCOL)

    async with TimerWheel() as timer_wheel:
        app = Starlette(routes=[WebSocketRoute("/v1/link", enter)])
        await Server(config(app, port=port, timer_wheel=timer_wheel, epoll=epoll)).serve()


async def autobahn(port: int) -> None:
    # In the peers' own environment only.
    from autobahn.asyncio.websocket import (  # type: ignore[import-not-found]
        WebSocketServerFactory,
        WebSocketServerProtocol,
    )

    opened: set[Any] = set()

    def push(stock: int, tick: int, at: float, binary: bool) -> None:
        prepared = factory.prepareMessage(encoded(stock, tick, at, binary), binary)
        for protocol in list(opened):
            protocol.sendPreparedMessage(prepared)

    class Peer(WebSocketServerProtocol):  # type: ignore[misc]  # untyped
        def onConnect(self, request: object) -> str:
            return SUBPROTOCOL

        def onOpen(self) -> None:
            opened.add(self)

        def onMessage(self, payload: bytes, is_binary: bool) -> None:
            pushes.begin(payload)

        def onClose(self, was_clean: bool, code: int, reason: str) -> None:
            opened.discard(self)

    pushes = Pushes(push)
    factory = WebSocketServerFactory(protocols=[SUBPROTOCOL])
    factory.protocol = Peer
    await asyncio.get_running_loop().create_server(factory, "127.0.0.1", port, backlog=2048)
    await asyncio.Event().wait()


async def socketio(port: int) -> None:
    import socketio as library  # type: ignore[import-not-found]  # as autobahn
    import uvicorn

    server = library.AsyncServer(async_mode="asgi", cors_allowed_origins="*")

    async def push(stock: int, tick: int, at: float, binary: bool) -> None:
        await server.emit("quote", encoded(stock, tick, at, True) if binary else quote(stock, tick, at))

    pushes = Pushes(push)

    @server.on("push")  # type: ignore[untyped-decorator]  # untyped
    async def asked(sid: str, data: dict[str, Any]) -> None:
        pushes.begin(json.dumps(data))

    app = library.ASGIApp(server)
    settings = uvicorn.Config(app, port=port, ws="websockets-sansio", log_config=None, access_log=False)
    await uvicorn.Server(settings).serve()


SERVERS: dict[str, Callable[[int], Awaitable[None]]] = {
    "fairlead": partial(fairlead, epoll=False),
    "epoll": partial(fairlead, epoll=True),
    "autobahn": autobahn,
    "socketio": socketio,
}


if __name__ == "__main__":
    uvloop.run(SERVERS[sys.argv[1]](int(sys.argv[2])))  # type: ignore[arg-type]  # all are coroutines
