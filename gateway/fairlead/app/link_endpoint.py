"""The WebSocket endpoint for agents, `/v1/link`. It refuses whatever it can refuse before the upgrade.

It checks, in this order: Host and Origin (403), the credential (401, or 429 after many wrong ones), whether the node
drains, is full or is busy (503), the accept rate (429), and the subprotocol (426). The credential comes before the
state of the node, so that a client without a credential learns nothing about the node and cannot cause a scale-up by
being refused. A connection that passes is attached to a session and this coroutine ends: no object of Starlette lives
as long as the link.

`take` accepts in one call, for a server that has parsed the request by itself. It makes the same checks. It refuses
only what a busy node cannot take, because a node that has too much to do must refuse cheaply; everything else that it
does not accept comes to `enter`, which refuses, counts and delays.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.responses import PlainTextResponse, Response
from starlette.websockets import WebSocket

from fairlead.app.access.accept_rate import AcceptRate
from fairlead.app.access.agent_credentials import Presented, PresentedCredential
from fairlead.app.access.guard import WAITING, AccessGuard, client_key
from fairlead.app.access.penalties import Penalties
from fairlead.app.api.problems import problem
from fairlead.carrier.attach import attach
from fairlead.carrier.http_server.link_acceptor import LinkRefusal
from fairlead.carrier.http_server.response import Headers
from fairlead.errors import FairleadError, Forbidden, NodeBusy
from fairlead.hub.session import Session
from fairlead.hub.session_context import SessionContext
from fairlead.identity.authenticated_agent import AuthenticatedAgent
from fairlead.identity.link_challenge import LinkChallenge
from fairlead.identity.proof import NONCE_BYTES, NONCE_HEADER
from fairlead.node import Node
from fairlead.telemetry.tracing import wall_ns
from fairlead.tenant import qualified, tenant_of
from fairlead.wire.codec import gateway_codec
from fairlead.wire.messages import SUBPROTOCOLS
from fairlead.wire.retry import retry_after


class LinkEndpoint:
    def __init__(self, node: Node, guard: AccessGuard[Presented]) -> None:
        self._node = node
        self._guard = guard
        settings = node.settings
        self._contexts: Mapping[str, SessionContext] = {
            name: SessionContext(
                gateway_codec(name, settings.message_limit), node.routing.link_handler, settings.window
            )
            for name in SUBPROTOCOLS
        }
        self._rate = AcceptRate(settings.accept_rate)
        self._refused = Penalties()
        self._waiting = 0

    async def enter(self, websocket: WebSocket) -> None:
        """Handle one upgrade request: refuse it, or attach the connection to a new session."""
        entered = wall_ns()
        try:
            presented = await self._guard.admit(websocket.scope)
        except FairleadError as e:
            self._reject("host" if isinstance(e, Forbidden) else "token")
            await websocket.send_denial_response(problem(e))
            return
        refusal = self._refusal(websocket, _party(websocket.scope, presented))
        if refusal is not None:
            if refusal.status_code == 429:
                await self._hold_back(client_key(websocket.scope))
            await websocket.send_denial_response(refusal)
            return
        session, subprotocol, headers = self._accept(websocket.scope, entered, presented)
        await attach(websocket, session, subprotocol, headers, context=self._node.connection_context)

    def take(self, scope: Mapping[str, Any]) -> tuple[Session, str, Headers] | LinkRefusal | None:
        """Return a new session, its subprotocol and headers for the answer; or the refusal of a busy node, or None if
        `enter` is to refuse the request. `scope` has its headers, subprotocols and client.
        """
        entered = wall_ns()
        if not self._offers_codec(scope):
            return None
        try:
            presented = self._guard.examine(scope)
        except FairleadError:
            return None
        # The accept rate comes last, because what it grants is a link.
        obstacle = self._obstacle(_party(scope, presented))
        if obstacle == "busy":
            answer = self._refuse_busy()
            return LinkRefusal(answer.status_code, answer.raw_headers, bytes(answer.body))
        return self._accept(scope, entered, presented) if obstacle is None else None

    def available(self) -> bool:
        """Whether this node accepts links now, from a client that is within its share."""
        hub, now = self._node.hub, asyncio.get_running_loop().time()
        full = hub.links >= self._node.settings.capacity
        return not (hub.draining or full) and hub.opening.has_shared_room(now) and self._rate.available(now)

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

    def _accept(self, scope: Mapping[str, Any], entered: int, presented: Presented) -> tuple[Session, str, Headers]:
        subprotocol = next(name for name in scope["subprotocols"] if name in self._contexts)
        handler = self._node.routing.link_handler
        session = Session(self._contexts[subprotocol], [entered, wall_ns(), 0, 0, 0, 0])
        if presented is None or isinstance(presented, AuthenticatedAgent):
            handler.link_accepted(session, _party(scope, presented), presented)
            return session, subprotocol, ()
        nonce = secrets.token_hex(NONCE_BYTES)
        challenge = LinkChallenge(presented.credential, presented.text, nonce, presented.origin)
        handler.link_accepted(session, _party(scope, presented), challenge)
        return session, subprotocol, ((NONCE_HEADER.encode(), challenge.nonce.encode()),)

    def _offers_codec(self, scope: Mapping[str, Any]) -> bool:
        return any(name in self._contexts for name in scope["subprotocols"])

    def _obstacle(self, party: str) -> str | None:
        """Why this node accepts no link from this address or tenant now, or None if it does; the link is then counted
        against the accept rate.
        """
        node = self._node
        if node.hub.draining:
            return "draining"
        if node.hub.links >= node.settings.capacity:
            return "full"
        now = asyncio.get_running_loop().time()
        if not node.hub.opening.has_room(party, now):
            return "busy"
        if not self._rate.take(party, now):
            return "rate"
        return None

    def _refusal(self, websocket: WebSocket, party: str) -> Response | None:
        node, rate = self._node, self._rate.rate
        obstacle = self._obstacle(party)
        if obstacle == "draining":
            return self._busy(obstacle, 503, NodeBusy("this node is draining: connect again to reach another one"), 1)
        if obstacle == "full":
            full = NodeBusy(f"this node is full, with {node.hub.links} links: connect again to reach another one")
            return self._busy(obstacle, 503, full, 10)
        if obstacle == "busy":
            return self._refuse_busy()
        if obstacle == "rate":
            fast = NodeBusy(f"this node accepts no more than {rate:g} new links a second: try again later")
            return self._busy(obstacle, 429, fast, max(1.0, node.hub.links / rate))
        if not self._offers_codec(websocket.scope):
            self._reject("subprotocol")
            return PlainTextResponse(
                f"Unsupported subprotocol: name one of {', '.join(self._contexts)} in Sec-WebSocket-Protocol.\n",
                426,
                {"upgrade": "websocket", "sec-websocket-protocol": ", ".join(self._contexts)},
            )
        return None

    def _refuse_busy(self) -> Response:
        opening = self._node.hub.opening
        busy = NodeBusy(f"this node is busy: {len(opening)} links wait for their welcome; try again later")
        return self._busy("busy", 503, busy, opening.return_time(asyncio.get_running_loop().time()))

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


def _party(scope: Mapping[str, Any], presented: Presented) -> str:
    """Who shares what this node can accept: each address has a share, and each tenant but the default one, however many
    addresses its agents have."""
    if isinstance(presented, PresentedCredential) and (tenant := tenant_of(presented.credential.agent)):
        return qualified(tenant, "")
    return client_key(scope)
