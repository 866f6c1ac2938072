"""The servers under test, one a process: `python servers.py NAME PORT`. Each echoes what it gets on /v1/link.

fairlead: our carrier, an attached listener. sansio: Starlette on stock uvicorn. aiohttp: its own server. And
`node`: the real `fairlead serve` with the arguments that follow. SIGUSR1 makes any of them collect all garbage,
give memory back and write the milliseconds of the collection to the file named by BENCH_GC.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
import time
from pathlib import Path

import uvloop


def collect(*_: object) -> None:
    started = time.perf_counter()
    gc.collect()
    took = (time.perf_counter() - started) * 1000
    ctypes.CDLL(None).malloc_trim(0)
    Path(os.environ["BENCH_GC"]).write_text(f"{took}")


class Echo:
    """One listener for all connections."""

    def on_open(self, connection: object) -> None: ...
    def on_message(self, connection, message) -> None:  # type: ignore[no-untyped-def]
        connection.send(message)

    def on_close(self, connection: object, code: int, reason: str) -> None: ...
    def on_silence(self, connection: object) -> None: ...
    def on_writable(self, connection: object) -> None: ...
    def on_overflow(self, connection: object) -> None: ...


async def fairlead(port: int) -> None:
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket

    from fairlead.carrier.attach import attach
    from fairlead.carrier.server import Server, config
    from fairlead.carrier.sweep import Sweep

    echo = Echo()

    async def enter(websocket: WebSocket) -> None:
        await attach(websocket, echo, "fairlead.v1.msgpack")

    async with Sweep() as sweep:
        app = Starlette(routes=[WebSocketRoute("/v1/link", enter)])
        await Server(config(app, port=port, sweep=sweep)).serve()


async def sansio(port: int) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect

    async def enter(websocket: WebSocket) -> None:
        await websocket.accept("fairlead.v1.msgpack")
        try:
            while True:
                await websocket.send_bytes(await websocket.receive_bytes())
        except WebSocketDisconnect:
            pass

    app = Starlette(routes=[WebSocketRoute("/v1/link", enter)])
    settings = uvicorn.Config(
        app, port=port, ws="websockets-sansio", ws_per_message_deflate=False, log_config=None, access_log=False
    )
    await uvicorn.Server(settings).serve()


async def aiohttp(port: int) -> None:
    from aiohttp import WSMsgType, web

    async def enter(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("fairlead.v1.msgpack",), compress=False)
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        return socket

    app = web.Application()
    app.router.add_get("/v1/link", enter)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
    await asyncio.Event().wait()


def main() -> None:
    signal.signal(signal.SIGUSR1, collect)
    name = sys.argv[1]
    if name == "node":
        from fairlead.cli.main import main as fairlead_main

        sys.argv = ["fairlead", "serve", *sys.argv[2:]]
        fairlead_main()
    else:
        uvloop.run({"fairlead": fairlead, "sansio": sansio, "aiohttp": aiohttp}[name](int(sys.argv[2])))


if __name__ == "__main__":
    main()
