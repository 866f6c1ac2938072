"""The servers of `bench.tls`, one a process: `python -m bench.peers.tls_servers NAME PORT CERTIFICATE KEY`.

carrier: our carrier on epoll, which accepts links directly, with TLS of its own. plain: the same without TLS, to stand
behind nginx; its certificate and key are ignored. uvicorn: Starlette on stock uvicorn, with the TLS of uvloop. All of
them echo what they get on /v1/link, and signals do what they do to the other servers of the benchmark.
"""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from fairlead.carrier.attach import attach
from fairlead.carrier.http_server.link_acceptor import DirectEndpoint
from fairlead.carrier.http_server.uvicorn_server import Server, config
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.carrier.tls.server_certificate import ServerCertificate

from bench.peers.servers import BACKLOG, SUBPROTOCOL, Echo, collect


async def carrier(port: int, certificate: ServerCertificate | None = None) -> None:
    echo = Echo()

    async def enter(websocket: WebSocket) -> None:
        await attach(websocket, echo, SUBPROTOCOL)

    direct = DirectEndpoint(b"/v1/link", lambda scope: (echo, SUBPROTOCOL, ()))
    app = Starlette(routes=[WebSocketRoute("/v1/link", enter)])
    async with TimerWheel() as timer_wheel:
        settings = config(app, port=port, timer_wheel=timer_wheel, epoll=True, direct=direct, certificate=certificate)
        await Server(settings).serve()


async def on_uvicorn(port: int, certificate: Path, key: Path) -> None:
    async def enter(websocket: WebSocket) -> None:
        await websocket.accept(SUBPROTOCOL)
        while (event := await websocket.receive())["type"] == "websocket.receive":
            await websocket.send_bytes(event["bytes"])

    settings = uvicorn.Config(
        Starlette(routes=[WebSocketRoute("/v1/link", enter)]), port=port, ws="websockets-sansio",
        ws_per_message_deflate=False, ws_ping_interval=None, backlog=BACKLOG, log_config=None, access_log=False,
        ssl_certfile=str(certificate), ssl_keyfile=str(key),
    )  # fmt: skip
    await uvicorn.Server(settings).serve()


def main() -> None:
    signal.signal(signal.SIGUSR1, collect)
    signal.signal(signal.SIGUSR2, lambda *_: gc.disable())
    name, port, certificate, key = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    if name == "uvicorn":
        uvloop.run(on_uvicorn(port, certificate, key))
    else:
        uvloop.run(carrier(port, ServerCertificate(certificate, key) if name == "carrier" else None))


if __name__ == "__main__":
    main()
