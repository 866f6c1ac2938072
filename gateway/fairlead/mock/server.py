"""Where the agent connects: a WebSocket server on the loopback that judges upgrade requests and hands links over.

Made by the player. It stands on the library `websockets`, which the base install has, and not on our own carrier: that
one lives in uvicorn, which only a gateway needs, and an agent in another language should meet an endpoint that is not
the one it is developed for.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from fairlead.errors import ConfigError, ProtocolViolation
from fairlead.mock.comparison import Violation, raw, show
from fairlead.mock.script import ACK, BYE, CHUNK, CREDIT, END, EVENT, HB, Raw, Refusal
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import Codec, agent_codec, gateway_codec
from fairlead.wire.messages import MESSAGE_LIMIT, SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK, FromAgent, Hb

ENCODINGS = {"json": SUBPROTOCOL_JSON, "msgpack": SUBPROTOCOL_MSGPACK}
PATH = "/v1/link"


class AgentViolation(Exception):
    """The agent did what it must not; `fault` tells."""

    def __init__(self, fault: Violation) -> None:
        super().__init__(fault.what)
        self.fault = fault


class LinkClosed(Exception):
    """The connection is over. `code` is what the agent's close frame said, 1006 without one."""

    def __init__(self, code: int, bye: Raw | None) -> None:
        super().__init__(f"closed with {code}")
        self.code = code
        self.bye = bye


class MockLink:
    """One connection of the agent."""

    def __init__(self, socket: ServerConnection, encoding: str) -> None:
        self.socket = socket
        self.received = 0
        """Numbered messages so far."""
        self.bye: Raw | None = None
        self._codec: Codec[FromAgent] = gateway_codec(ENCODINGS[encoding])
        self._back = agent_codec(ENCODINGS[encoding])
        self._twin = agent_codec(SUBPROTOCOL_JSON)

    async def say(self, message: Raw) -> None:
        """Send one message of the gateway. Raises Gone when the connection is over."""
        decoded = self._twin.decode(msgspec.json.encode(message).decode())
        if decoded is not None:
            data = self._back.encode(decoded)
        elif self._back.binary:
            data = msgspec.msgpack.encode(message)  # of a later version, which no codec knows
        else:
            data = msgspec.json.encode(message).decode()
        await self.send(data)

    async def send(self, data: bytes | str) -> None:
        try:
            await self.socket.send(data)
        except ConnectionClosed as e:
            raise self._gone() from e

    async def read_up(self, timeout: float) -> None:
        """Wait until the agent has read all that it was sent: it answers a ping in its turn."""
        try:
            await asyncio.wait_for(await self.socket.ping(), timeout)
        except ConnectionClosed:
            pass  # whoever listens next is told
        except TimeoutError as e:
            what = f"no pong within {timeout:g} s: an agent must read always, and answer pings (RFC 6455 §5.5.2)"
            raise AgentViolation(Violation(what, "4")) from e

    async def hear(self, timeout: float, *, quiet: bool = True) -> Raw | None:
        """The next message that is not merely possible; None when none came in time. Heartbeats are answered here;
        with `quiet` they, and credit, are passed over. Raises Gone, and Misconduct for what is no message.
        """
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                data = await asyncio.wait_for(self.socket.recv(), left)
            except TimeoutError:
                return None
            except ConnectionClosed as e:
                raise self._gone() from e
            try:
                decoded = self._codec.decode(data)
            except ProtocolViolation as e:
                what = f"not a legal message: {e.message}; a gateway closes with {e.close_code}"
                raise AgentViolation(Violation(what, "3", came=repr(data)[:400])) from e
            if decoded is None:
                continue
            message = raw(decoded)
            if isinstance(decoded, Hb):
                await self._beat(message, decoded)
            if message["t"] == BYE:
                self.bye = message
            if quiet and message["t"] in (HB, CREDIT):
                continue
            self.received += message["t"] in (ACK, CHUNK, END) or (message["t"] == EVENT and message.get("qos", 1) == 1)
            return message
        return None

    async def _beat(self, message: Raw, decoded: Hb) -> None:
        if decoded.echo is not None:
            what = "an agent MUST NOT answer an hb: two sides that answer each other never stop"
            raise AgentViolation(Violation(what, "4", came=show(message)))
        await self.say({"t": HB, "echo": decoded.ts})

    def _gone(self) -> LinkClosed:
        sent = self.socket.protocol.close_sent
        if sent is not None and sent.code == CloseCode.FRAME_TOO_BIG:
            raise AgentViolation(Violation(f"a message above {MESSAGE_LIMIT} bytes", "11"))
        received = self.socket.protocol.close_rcvd
        return LinkClosed(received.code if received is not None else 1006, self.bye)

    def abort(self) -> None:
        self.socket.transport.abort()


class MockServer:
    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.link = ""
        """Its address."""
        self.faults: list[Violation] = []
        """What was wrong with upgrade requests."""
        self._server: Server | None = None
        self._links: asyncio.Queue[MockLink] = asyncio.Queue()
        self._refusal: Refusal | None = None

    async def start(self, port: int) -> None:
        """Listen on the loopback. Raises ConfigError when the port is taken."""
        try:
            self._server = await serve(
                self._serve, "127.0.0.1", port, subprotocols=[Subprotocol(ENCODINGS[self.encoding])], compression=None,
                ping_interval=None, process_request=self._asked, max_size=MESSAGE_LIMIT, close_timeout=5,
            )  # fmt: skip
        except OSError as e:
            raise ConfigError(f"port {port} cannot be listened on ({e.strerror or e}); give another with --port") from e
        self.link = f"ws://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def accept(self, timeout: float) -> MockLink | None:
        """The next connection; None when none came in time."""
        try:
            return await asyncio.wait_for(self._links.get(), timeout)
        except TimeoutError:
            return None

    def refuse_next(self, refusal: Refusal) -> None:
        """Answer the next request with this, which is no fault of the agent's."""
        self._refusal = refusal

    def forget(self) -> None:
        """Connections that wait, and refusals that nobody came for, are of the past."""
        self._refusal = None
        while not self._links.empty():
            self._links.get_nowait().abort()

    async def _serve(self, socket: ServerConnection) -> None:
        self._links.put_nowait(MockLink(socket, self.encoding))
        await socket.wait_closed()

    def _asked(self, socket: ServerConnection, request: Request) -> Response | None:
        """Refuse as a gateway would, and note why."""
        path = request.path.partition("?")[0]
        offered = [part.strip() for part in ",".join(request.headers.get_all("Sec-WebSocket-Protocol")).split(",")]
        if path != PATH:
            return self._refuse(socket, 403, f"the path of the upgrade is {path}, expected {PATH}")
        if not request.headers.get("Authorization", "").startswith("Bearer "):
            return self._refuse(socket, 401, "the upgrade has no header Authorization: Bearer <credential>")
        if ENCODINGS[self.encoding] not in offered:
            want, came = ENCODINGS[self.encoding], ", ".join(filter(None, offered)) or "nothing"
            return self._refuse(socket, 426, f"Sec-WebSocket-Protocol offers {came}, expected {want} among it")
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            response = socket.respond(HTTPStatus(refusal.status), "refused, as the conversation wants it\n")
            if refusal.retry_after:
                response.headers["Retry-After"] = str(refusal.retry_after)
            return response
        return None

    def _refuse(self, socket: ServerConnection, status: int, why: str) -> Response:
        self.faults.append(Violation(why, "1"))
        response = socket.respond(HTTPStatus(status), f"{why}\n")
        if status == 426:
            response.headers["Upgrade"] = "websocket"
            response.headers["Sec-WebSocket-Protocol"] = ENCODINGS[self.encoding]
        return response
