"""One connection of the agent under test: sends the gateway's messages and reads the agent's.

Made by `server`. Heartbeats are answered here. It raises AgentViolation for a message that is not legal, and LinkClosed
when the connection is over.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from fairlead.errors import ProtocolViolation
from fairlead.mock.comparison import Violation, raw, show
from fairlead.mock.script import ACK, BYE, CHUNK, CREDIT, END, EVENT, HB, Raw
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import Codec, agent_codec, gateway_codec
from fairlead.wire.messages import MESSAGE_LIMIT, SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK, Chunk, Credit, FromAgent, Hb

ENCODINGS = {"json": SUBPROTOCOL_JSON, "msgpack": SUBPROTOCOL_MSGPACK}


class AgentViolation(Exception):
    """The agent violated the protocol."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


class LinkClosed(Exception):
    """The connection is over. `code` is that of the agent's close frame, 1006 without one."""

    def __init__(self, code: int, bye: Raw | None) -> None:
        super().__init__(f"closed with {code}")
        self.code = code
        self.bye = bye


class MockLink:
    """One connection of the agent."""

    def __init__(self, socket: ServerConnection, encoding: str) -> None:
        self.socket = socket
        self.received = 0
        """The number of numbered messages so far."""
        self.fed = 0
        """Bytes of input that were sent."""
        self.granted = 0
        """Bytes of input that the agent has granted."""
        self.bye: Raw | None = None
        self._codec: Codec[FromAgent] = gateway_codec(ENCODINGS[encoding])
        self._agent_codec = agent_codec(ENCODINGS[encoding])
        self._json_codec = agent_codec(SUBPROTOCOL_JSON)

    async def send_message(self, message: Raw) -> None:
        """Send one message of the gateway. Raises LinkClosed when the connection is over."""
        decoded = self._json_codec.decode(msgspec.json.encode(message).decode())
        if isinstance(decoded, Chunk):
            self.fed += len(decoded.payload)
        if decoded is not None:
            data = self._agent_codec.encode(decoded)
        elif self._agent_codec.binary:
            data = msgspec.msgpack.encode(message)  # from a later version, which the codecs do not know
        else:
            data = msgspec.json.encode(message).decode()
        await self.send(data)

    async def send(self, data: bytes | str) -> None:
        try:
            await self.socket.send(data)
        except ConnectionClosed as e:
            raise self._closed() from e

    async def wait_until_read(self, timeout: float) -> None:
        """Wait until the agent has read everything that it was sent: it answers a ping only after that."""
        try:
            await asyncio.wait_for(await self.socket.ping(), timeout)
        except ConnectionClosed:
            pass  # the next receive reports it
        except TimeoutError as e:
            what = f"no pong within {timeout:g} s: an agent must always read, and answer pings (RFC 6455 §5.5.2)"
            raise AgentViolation(Violation(what, "4")) from e

    async def receive(self, timeout: float, *, quiet: bool = True) -> Raw | None:
        """The next message; None if none came in time. Heartbeats are answered here; with `quiet`, heartbeats and
        credit are not returned. Raises LinkClosed, and AgentViolation for something that is not a message.
        """
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                data = await asyncio.wait_for(self.socket.recv(), left)
            except TimeoutError:
                return None
            except ConnectionClosed as e:
                raise self._closed() from e
            try:
                decoded = self._codec.decode(data)
            except ProtocolViolation as e:
                what = f"not a legal message: {e.message}; a gateway closes with {e.close_code}"
                raise AgentViolation(Violation(what, "3", received=repr(data)[:400])) from e
            if decoded is None:
                continue
            message = raw(decoded)
            if isinstance(decoded, Hb):
                await self._answer_heartbeat(message, decoded)
            if message["t"] == BYE:
                self.bye = message
            if isinstance(decoded, Credit):
                self.granted += decoded.bytes
            if quiet and message["t"] in (HB, CREDIT):
                continue
            self.received += message["t"] in (ACK, CHUNK, END) or (message["t"] == EVENT and message.get("qos", 1) == 1)
            return message
        return None

    async def _answer_heartbeat(self, message: Raw, decoded: Hb) -> None:
        if decoded.echo is not None:
            what = "an agent MUST NOT answer an hb: two sides that answer each other never stop"
            raise AgentViolation(Violation(what, "4", received=show(message)))
        await self.send_message({"t": HB, "echo": decoded.ts})

    def _closed(self) -> LinkClosed:
        sent = self.socket.protocol.close_sent
        if sent is not None and sent.code == CloseCode.FRAME_TOO_BIG:
            raise AgentViolation(Violation(f"a message above {MESSAGE_LIMIT} bytes", "11"))
        received = self.socket.protocol.close_rcvd
        return LinkClosed(received.code if received is not None else 1006, self.bye)

    @property
    def closed_by_agent(self) -> bool:
        return self.socket.protocol.close_rcvd is not None

    def abort(self) -> None:
        self.socket.transport.abort()
