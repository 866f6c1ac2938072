"""The server that the trial compares with: agents' WebSockets on Starlette and stock uvicorn, as services of this kind
are commonly written. Not part of Fairlead.

Runs in the gateway's image, which holds the libraries; `plain.yaml` brings it by a ConfigMap. A pod knows its own
sockets. A command that comes to another pod reaches the agent over Redis pub/sub, one channel for each agent, and its
lines come back on the channel of the pod that was asked. A command for an agent that no pod listens for is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

HOST = os.environ.get("AGENTS_HOST", "")
"""The only name under which agents may come; any if empty."""
redis = Redis.from_url(os.environ["REDIS"])
pubsub = redis.pubsub(ignore_subscribe_messages=True)
pod = f"replies:{secrets.token_hex(8)}"
sockets: dict[str, WebSocket] = {}
waiting: dict[str, asyncio.Queue[str]] = {}


async def listen() -> None:
    """Everything that other pods have for this one."""
    async for message in pubsub.listen():
        channel, data = message["channel"].decode(), message["data"].decode()
        if channel == pod:
            request = json.loads(data)["request"]
            if request in waiting:
                waiting[request].put_nowait(data)
        elif channel in sockets:
            try:
                await sockets[channel].send_text(data)
            except RuntimeError:
                pass  # it has just been closed


async def agent(socket: WebSocket) -> None:
    name = f"agent:{socket.path_params['agent']}"
    if HOST and socket.headers["host"].partition(":")[0] != HOST:
        await socket.close()
        return
    await socket.accept()
    sockets[name] = socket
    await pubsub.subscribe(name)
    try:
        async for text in socket.iter_text():
            request = json.loads(text)["request"]
            await redis.publish(request.partition("/")[0], text)
    finally:
        if sockets.get(name) is socket:
            del sockets[name]
            await pubsub.unsubscribe(name)


async def command(request: Request) -> Response:
    order = await request.json()
    id = f"{pod}/{secrets.token_hex(8)}"
    lines: asyncio.Queue[str] = asyncio.Queue()
    waiting[id] = lines
    name = f"agent:{request.path_params['agent']}"
    if not await redis.publish(name, json.dumps({**order, "request": id})):
        del waiting[id]
        return JSONResponse({"error": "the agent is not connected"}, 404)

    async def stream() -> AsyncIterator[str]:
        try:
            while True:
                line = await lines.get()
                yield f"{line}\n"
                if "end" in json.loads(line):
                    return
        finally:
            del waiting[id]

    return StreamingResponse(stream(), media_type="application/x-ndjson")


async def count(_: Request) -> Response:
    """For the metric that the HPA scales by."""
    return JSONResponse({"sockets": len(sockets)})


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    await pubsub.subscribe(pod)
    task = asyncio.create_task(listen())
    yield
    task.cancel()


app = Starlette(
    routes=[
        WebSocketRoute("/agents/{agent}", agent),
        Route("/agents/{agent}", command, methods=["POST"]),
        Route("/count", count),
    ],
    lifespan=lifespan,
)
