"""Closes API connections while a node stops, so that callers reconnect to another node.

`serve` wraps it around the API. While the node stops, each response is the last one on its connection. A caller that
kept its connection would send requests to this node until the port closes, and could not know whether the node received
the last one (RFC 9112, section 9.6). It never refuses a request: a node that stops answers like any other. `serve` also
has the parts loaded here that find out whether a caller has closed its connection.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def closing_connections_while(leaving: Callable[[], bool], app: ASGIApp) -> ASGIApp:
    """Wrap `app` so that its responses carry `Connection: close` while `leaving()` is true."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not leaving():
            await app(scope, receive, send)
            return

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].lower() != b"connection"]
                message = {**message, "headers": [*kept, (b"connection", b"close")]}
            await send(message)

        await app(scope, receive, send_last)

    return wrapped


async def load_lazy_parts() -> None:
    """Have Starlette load now what it loads when a stream first looks whether its caller has gone: a node would do
    nothing else for 50 ms, in the middle of the first run that somebody follows."""

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    await Request({"type": "http"}, gone).is_disconnected()
