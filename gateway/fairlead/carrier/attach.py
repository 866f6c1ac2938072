"""Give an accepted WebSocket to a listener, on any ASGI server.

An endpoint calls `attach` after its own checks. On our server the call returns at once, and the endpoint should return
too: its task and scope are then freed, and a small connection object calls the listener. On any other server, and
under Starlette's TestClient, `attach` runs an `AsgiConnection` until the connection is over, with the same listener and
the same semantics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fairlead.carrier.asgi_connection import AsgiConnection, WebSocket
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Listener
from fairlead.carrier.timer_wheel import TimerWheel

EXTENSION: Final = "fairlead.attach"
"""This key in scope["extensions"] says that the server takes a listener in the accept message."""
LISTENER: Final = "fairlead.listener"
"""The key under which the accept message holds the listener."""


async def attach(
    websocket: WebSocket,
    listener: Listener,
    subprotocol: str | None = None,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    context: ConnectionContext | None = None,
) -> None:
    """Accept `websocket` for `listener`. `context` is used only if the server is not ours."""
    accept: dict[str, Any] = {
        "type": "websocket.accept",
        "subprotocol": subprotocol,
        "headers": list(headers),
    }
    await websocket.receive()
    if EXTENSION in (websocket.scope.get("extensions") or {}):
        await websocket.send(accept | {LISTENER: listener})
        return
    await websocket.send(accept)
    if context is not None:
        await AsgiConnection(websocket, listener, context).run()
        return
    async with TimerWheel() as timer_wheel:
        await AsgiConnection(websocket, listener, ConnectionContext(timer_wheel)).run()
