"""Sends callers elsewhere while a node leaves: each answer is the last one on its connection.

Wrapped around the API by `serve`. A caller that keeps its connection would ask this node until the port closes, and
could then not tell whether its last request was heard (RFC 9112, section 9.6). Nothing is refused here: a node that
leaves answers as well as any other.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


def closing_connections_while(leaving: Callable[[], bool], app: ASGIApp) -> ASGIApp:
    """`app`, whose answers carry `Connection: close` while `leaving()` is true."""

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
