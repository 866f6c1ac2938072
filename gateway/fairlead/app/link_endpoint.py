"""The WebSocket endpoint for agents, `/v1/link`. It refuses whatever it can refuse before the upgrade.

It checks, in this order: Host and Origin (403), the credential (401, or 429 after many wrong ones), whether the node is
draining or full (503), the accept rate (429), and the subprotocol (426). The credential comes before the state of the
node, so that a stranger learns nothing about the node and cannot cause a scale-up by being refused. A connection that
passes is attached to a session and this coroutine ends: no object of Starlette lives as long as the link.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from starlette.responses import PlainTextResponse, Response
from starlette.websockets import WebSocket

from fairlead.app.access.accept_rate import AcceptRate
from fairlead.app.access.guard import WAITING, AccessGuard, client_key
from fairlead.app.access.penalties import Penalties
from fairlead.app.api.problems import problem
from fairlead.carrier.attach import attach
from fairlead.errors import FairleadError, Forbidden, NodeBusy
from fairlead.hub.session import Session
from fairlead.node import Node
from fairlead.telemetry.tracing import wall_ns
from fairlead.wire.codec import Codec, gateway_codec
from fairlead.wire.messages import SUBPROTOCOLS, FromAgent
from fairlead.wire.retry import retry_after


class LinkEndpoint:
    def __init__(self, node: Node, guard: AccessGuard) -> None:
        self._node = node
        self._guard = guard
        settings = node.settings
        self._codecs: Mapping[str, Codec[FromAgent]] = {
            name: gateway_codec(name, settings.message_limit) for name in SUBPROTOCOLS
        }
        self._rate = AcceptRate(settings.accept_rate)
        self._refused = Penalties()
        self._waiting = 0

    async def enter(self, websocket: WebSocket) -> None:
        """Handle one upgrade request: refuse it, or attach the connection to a new session."""
        entered = wall_ns()
        try:
            await self._guard.admit(websocket.scope)
        except FairleadError as e:
            self._reject("host" if isinstance(e, Forbidden) else "token")
            await websocket.send_denial_response(problem(e))
            return
        refusal = self._refusal(websocket)
        if refusal is not None:
            if refusal.status_code == 429:
                await self._hold_back(client_key(websocket.scope))
            await websocket.send_denial_response(refusal)
            return
        subprotocol = next(name for name in websocket.scope["subprotocols"] if name in self._codecs)
        settings = self._node.settings
        session = Session(
            self._codecs[subprotocol],
            self._node.routing.link_handler,
            settings.window,
            [entered, wall_ns(), 0, 0, 0, 0],
        )
        await attach(websocket, session, subprotocol, context=self._node.connection_context)

    async def _hold_back(self, key: str) -> None:
        """Delay the answer to an address that keeps exceeding the accept rate, so that a client that ignores
        Retry-After costs little."""
        delay = self._refused.fail(key, asyncio.get_running_loop().time(), random.random()).delay
        if delay and self._waiting < WAITING:
            self._waiting += 1
            try:
                await asyncio.sleep(delay)
            finally:
                self._waiting -= 1

    def _refusal(self, websocket: WebSocket) -> Response | None:
        node = self._node
        if node.hub.draining:
            return self._busy("draining", 503, NodeBusy("this node is draining: connect again to reach another one"), 1)
        if node.hub.links >= node.settings.capacity:
            full = NodeBusy(f"this node is full, with {node.hub.links} links: connect again to reach another one")
            return self._busy("full", 503, full, 10)
        rate = self._rate
        if not rate.take(client_key(websocket.scope), asyncio.get_running_loop().time()):
            fast = NodeBusy(f"this node accepts no more than {rate.rate:g} new links a second: try again later")
            return self._busy("rate", 429, fast, max(1.0, node.hub.links / rate.rate))
        if not any(name in self._codecs for name in websocket.scope["subprotocols"]):
            self._reject("subprotocol")
            return PlainTextResponse(
                f"Unsupported subprotocol: name one of {', '.join(self._codecs)} in Sec-WebSocket-Protocol.\n",
                426,
                {"upgrade": "websocket", "sec-websocket-protocol": ", ".join(self._codecs)},
            )
        return None

    def _reject(self, reason: str) -> None:
        self._node.metrics.rejected.labels(reason).inc()
        self._node.hub.rejected += 1

    def _busy(self, reason: str, status: int, error: NodeBusy, most: float) -> Response:
        """A refusal with a random Retry-After of up to `most` seconds, which spreads the refused agents."""
        self._node.metrics.rejected.labels(reason).inc()
        if reason != "draining":
            self._node.hub.refused += 1
        answer = problem(error, status)
        answer.headers["retry-after"] = str(retry_after(most, random.random()))
        return answer
