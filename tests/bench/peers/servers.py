"""The servers under test, one a process: `python servers.py NAME PORT`. Each answers what it gets on /v1/link.

fairlead: our carrier, an attached listener; epoll: the same with `epoll`; direct: and with links accepted directly.
sansio, legacy, wsproto: Starlette on stock uvicorn with each of its WebSocket protocols. aiohttp, websockets,
autobahn, picows, socketify: their own servers. Binary messages are echoed; a text `{"c": n}` is answered with `{"c":
n, "ts": seconds}`. Compression and pings of their own are off everywhere. And `node`: the real `fairlead serve` with
the arguments that follow. SIGUSR1 makes any of them collect all garbage, give memory back and write the milliseconds
of the collection to the file named by BENCH_GC. After SIGUSR2 it never collects garbage by itself.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

if TYPE_CHECKING:  # other servers run where Fairlead is not installed
    from fairlead.carrier.listener import Connection

SUBPROTOCOL = "fairlead.v1.msgpack"
BACKLOG = 2048


def collect(*_: object) -> None:
    started = time.perf_counter()
    gc.collect()
    took = (time.perf_counter() - started) * 1000
    ctypes.CDLL(None).malloc_trim(0)
    Path(os.environ["BENCH_GC"]).write_text(f"{took}")


def answer(message: bytes | str) -> bytes | str:
    if isinstance(message, bytes):
        return message
    return json.dumps({"c": json.loads(message)["c"], "ts": time.time()})


class Echo:
    """One listener for all connections."""

    def on_open(self, connection: object) -> None: ...
    def on_message(self, connection: Connection, message: bytes | str) -> None:
        connection.send(answer(message))

    def on_close(self, connection: object, code: int, reason: str) -> None: ...
    def on_silence(self, connection: object) -> None: ...
    def on_writable(self, connection: object) -> None: ...
    def on_overflow(self, connection: object) -> None: ...


async def fairlead(port: int, epoll: bool = False, direct: bool = False) -> None:
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket

    from fairlead.carrier.attach import attach
    from fairlead.carrier.http_server.link_acceptor import DirectEndpoint
    from fairlead.carrier.http_server.uvicorn_server import Server, config
    from fairlead.carrier.timer_wheel import TimerWheel

    echo = Echo()

    async def enter(websocket: WebSocket) -> None:
        await attach(websocket, echo, SUBPROTOCOL)

    taken = DirectEndpoint(b"/v1/link", lambda scope: (echo, SUBPROTOCOL, ())) if direct else None
    async with TimerWheel() as timer_wheel:
        app = Starlette(routes=[WebSocketRoute("/v1/link", enter)])
        await Server(config(app, port=port, timer_wheel=timer_wheel, epoll=epoll, direct=taken)).serve()


def on_uvicorn(protocol: str) -> Callable[[int], Awaitable[None]]:
    async def serve(port: int) -> None:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import WebSocketRoute
        from starlette.websockets import WebSocket

        async def enter(websocket: WebSocket) -> None:
            await websocket.accept(SUBPROTOCOL)
            while (event := await websocket.receive())["type"] == "websocket.receive":
                if event.get("bytes") is not None:
                    await websocket.send_bytes(event["bytes"])
                else:
                    await websocket.send_text(str(answer(event["text"])))

        app = Starlette(routes=[WebSocketRoute("/v1/link", enter)])
        settings = uvicorn.Config(
            app, port=port, ws=protocol, ws_per_message_deflate=False, ws_ping_interval=None, backlog=BACKLOG,
            log_config=None, access_log=False,
        )  # fmt: skip
        await uvicorn.Server(settings).serve()

    return serve


async def aiohttp(port: int) -> None:
    from aiohttp import WSMsgType, web

    async def enter(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), compress=False)
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
            elif message.type is WSMsgType.TEXT:
                await socket.send_str(str(answer(message.data)))
        return socket

    app = web.Application()
    app.router.add_get("/v1/link", enter)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=BACKLOG).start()
    await asyncio.Event().wait()


async def websockets(port: int) -> None:
    from websockets.asyncio.server import ServerConnection, serve
    from websockets.typing import Subprotocol

    async def enter(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(answer(message))

    async with serve(
        enter, "127.0.0.1", port, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None, ping_interval=None,
        backlog=BACKLOG,
    ):  # fmt: skip
        await asyncio.Event().wait()


async def autobahn(port: int) -> None:
    # In the peers' own environment only.
    from autobahn.asyncio.websocket import (  # type: ignore[import-not-found]
        WebSocketServerFactory,
        WebSocketServerProtocol,
    )

    class Peer(WebSocketServerProtocol):  # type: ignore[misc]  # untyped
        def onConnect(self, request: object) -> str:
            return SUBPROTOCOL

        def onMessage(self, payload: bytes, is_binary: bool) -> None:
            if is_binary:
                self.sendMessage(payload, True)
            else:
                self.sendMessage(str(answer(payload.decode())).encode(), False)

    factory = WebSocketServerFactory(protocols=[SUBPROTOCOL])
    factory.protocol = Peer
    await asyncio.get_running_loop().create_server(factory, "127.0.0.1", port, backlog=BACKLOG)
    await asyncio.Event().wait()


async def picows(port: int) -> None:
    import picows as library  # type: ignore[import-not-found]  # as autobahn

    class Peer(library.WSListener):  # type: ignore[misc]  # untyped
        def on_ws_frame(self, transport: Any, frame: Any) -> None:
            if frame.msg_type == library.WSMsgType.BINARY:
                transport.send(library.WSMsgType.BINARY, frame.get_payload_as_bytes())
            elif frame.msg_type == library.WSMsgType.TEXT:
                transport.send(library.WSMsgType.TEXT, str(answer(frame.get_payload_as_utf8_text())).encode())
            elif frame.msg_type == library.WSMsgType.CLOSE:
                transport.send_close(frame.get_close_code(), frame.get_close_message())
                transport.disconnect()

    def enter(_: object) -> object:
        accepted = library.WSUpgradeResponse.create_101_response({"Sec-WebSocket-Protocol": SUBPROTOCOL})
        return library.WSUpgradeResponseWithListener(accepted, Peer())

    await library.ws_create_server(enter, "127.0.0.1", port, backlog=BACKLOG)
    await asyncio.Event().wait()


def socketify(port: int) -> None:
    """µWebSockets, on the event loop that it makes itself."""
    import socketify as library  # type: ignore[import-not-found]  # as autobahn

    def upgrade(response: Any, request: Any, context: Any) -> None:
        key = request.get_header("sec-websocket-key")
        response.upgrade(key, request.get_header("sec-websocket-protocol"), "", context)

    def message(socket: Any, data: bytes | str, opcode: Any) -> None:
        socket.send(answer(data), opcode)

    app = library.App()
    limits = {"compression": library.CompressOptions.DISABLED, "idle_timeout": 0, "max_payload_length": 1 << 20}
    app.ws("/*", {**limits, "upgrade": upgrade, "message": message})
    app.listen(library.AppListenOptions(port=port, host="127.0.0.1"), lambda _: None)
    app.run()


SERVERS: dict[str, Callable[[int], Awaitable[None]]] = {
    "fairlead": fairlead,
    "epoll": partial(fairlead, epoll=True),
    "direct": partial(fairlead, epoll=True, direct=True),
    "sansio": on_uvicorn("websockets-sansio"),
    "legacy": on_uvicorn("websockets"),
    "wsproto": on_uvicorn("wsproto"),
    "aiohttp": aiohttp,
    "websockets": websockets,
    "autobahn": autobahn,
    "picows": picows,
}


def main() -> None:
    signal.signal(signal.SIGUSR1, collect)
    signal.signal(signal.SIGUSR2, lambda *_: gc.disable())
    name = sys.argv[1]
    if name == "node":
        from fairlead.cli.main import main as fairlead_main

        sys.argv = ["fairlead", "serve", *sys.argv[2:]]
        fairlead_main()
    elif name == "socketify":
        socketify(int(sys.argv[2]))
    else:
        uvloop.run(SERVERS[name](int(sys.argv[2])))  # type: ignore[arg-type]  # all are coroutines


if __name__ == "__main__":
    main()
