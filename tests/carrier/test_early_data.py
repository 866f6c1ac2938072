"""Bytes around an upgrade: it was sent behind another request, or frames were sent before its answer."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from fairlead.carrier.attach import attach
from fairlead.carrier.http_server.websocket_upgrade import MAX_EARLY

from support.carrier.listeners import RecordingListener
from support.carrier.servers import AttachedApp, Dial, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")


FRAME = b"x" * 1000


async def hello(request: Request) -> PlainTextResponse:
    await asyncio.sleep(0)
    return PlainTextResponse("hello")


async def test_an_upgrade_sent_behind_another_request_is_accepted(
    serve: Serve, dial: Dial, attached_app: AttachedApp
) -> None:
    app = attached_app(lambda: RecordingListener(echo=True))
    app.routes.append(Route("/hello", hello))
    raw = await dial(await serve(app), upgrade=False)
    raw.write(b"GET /hello HTTP/1.1\r\nHost: t\r\n\r\n" + raw.request())
    assert await raw.answer() == 200
    assert await raw.reader.readexactly(5) == b"hello"
    assert await raw.answer() == 101
    raw.send(0x82, b"one")
    assert await raw.frame() == (0x82, b"one")


@pytest.mark.parametrize("road", ["attached", "asgi"])
async def test_more_frames_before_the_answer_than_are_kept_arrive_later(serve: Serve, dial: Dial, road: str) -> None:
    accept = asyncio.Event()

    async def endpoint(websocket: WebSocket) -> None:
        await accept.wait()
        if road == "attached":
            await attach(websocket, RecordingListener(echo=True))
            return
        await websocket.accept()
        for _ in range(count):
            await websocket.send_bytes(await websocket.receive_bytes())

    count = 4 * MAX_EARLY // len(FRAME)
    raw = await dial(await serve(Starlette(routes=[WebSocketRoute("/", endpoint)])), upgrade=False)
    raw.write(raw.request())
    for _ in range(count):
        raw.send(0x82, FRAME)
    await raw.writer.drain()
    for _ in range(50):  # turns of the loop that both ends share: the server has read all that it reads for now
        await asyncio.sleep(0)
    accept.set()
    assert await raw.answer() == 101
    for _ in range(count):
        assert await raw.frame() == (0x82, FRAME)
