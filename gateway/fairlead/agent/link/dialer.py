"""Makes one attempt to open a link: connects, says hello and waits for welcome.

Called by `connector`. It returns how the attempt ended. It never waits between attempts, and it does not touch the link
that the agent may still have. When the process ends, it closes all connections that it has opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fairlead.agent.identity import AgentIdentity
from fairlead.agent.link.attempt import AttemptEnd, end_of_refusal, end_of_session
from fairlead.agent.link.options import ConnectOptions
from fairlead.agent.link.sender import Sender
from fairlead.agent.link.session import AgentSession, CommandReceiver, OnWelcome
from fairlead.carrier.client import ClientConnection, connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConfigError, ConnectionRefused
from fairlead.identity.proof import NONCE_HEADER
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import Hello, Resume

DIAL_TIMEOUT = 10.0
"""Seconds for TCP, TLS and the upgrade, in which a poor network may lose three SYNs. An attempt may hang for so long if
an ingress still sends it to a node that is gone, and the next one must follow within 15 s of the loss."""
WELCOME_TIMEOUT = 30.0
"""Seconds from hello to welcome: the gateway may be waiting for its store."""
LEAVE_TIMEOUT = 2.0
"""Seconds to wait for the gateway's close frames when the process ends."""
UNSENT = 4 << 20
"""Bytes in the send buffer above which a link is given up. Results stop at 64 KiB, so whatever exceeds that is acks,
credit and heartbeats."""
UNAUTHORIZED = 401
"""The status with which the gateway refuses a credential."""


class _Handshake:
    """What an attempt presents, and the nonce that the gateway gives to its connection."""

    __slots__ = ("credential", "nonce")

    def __init__(self) -> None:
        self.credential = self.nonce = ""

    def answered(self, headers: Mapping[str, str]) -> None:
        self.nonce = headers.get(NONCE_HEADER, "")


class Dialer:
    def __init__(
        self, options: ConnectOptions, subprotocol: str, sender: Sender, hello: Callable[[int, str], Hello]
    ) -> None:
        """`hello` is called for each attempt, with its number from 1 and the id of the last session."""
        self._options = options
        self._identity = options.token if isinstance(options.token, AgentIdentity) else None
        self._codec = agent_codec(subprotocol)
        self._sender = sender
        self._hello = hello
        # Only for the deadline of the closing handshake: the session itself detects silence.
        self._timer_wheel = TimerWheel(silence=3600.0, tick=1.0)
        self._attempts = 0
        self._connections: dict[AgentSession, ClientConnection] = {}
        """The link in use, an attempt at the next one, and earlier links that wait for the gateway's close frame."""

    def start(self) -> None:
        self._timer_wheel.start()

    async def attempt(self, receiver: CommandReceiver, on_welcome: OnWelcome) -> AgentSession | AttemptEnd:
        """The welcomed session, or how the attempt ended. `on_welcome` is called before the session's next message is
        read. An attempt that is cancelled leaves no connection behind.
        """
        self._attempts += 1
        number = self._attempts
        opening = _Handshake()

        def hello() -> Hello:
            self._sender.withhold_credit()
            made = self._hello(number, self._sender.session)
            if self._identity is None:
                return made
            resume = Resume(self._identity.session) if self._identity.session else None
            proof = self._identity.prove(opening.nonce, opening.credential)
            return msgspec.structs.replace(made, resume=resume, proof=proof)

        session = AgentSession(self._codec, AgentLink(self._sender.outbox), hello, receiver, on_welcome)
        try:
            return await self._open(session, opening)
        except ConnectionRefused as e:
            if self._identity is not None and e.status == UNAUTHORIZED:
                self._identity.refused()
            return end_of_refusal(e, has_token=self._identity is None and opening.credential != "")
        except ConfigError as e:
            return AttemptEnd(e.message)
        finally:
            if not session.welcome.done():
                session.leave(CloseCode.NORMAL, "the attempt was given up")
                self._sender.release_credit()

    async def _open(self, session: AgentSession, opening: _Handshake) -> AgentSession | AttemptEnd:
        """Connect and wait for welcome. Raises ConnectionRefused, and ConfigError when there is no token."""
        options = self._options
        token = options.token
        opening.credential = await token.credential() if isinstance(token, AgentIdentity) else token()
        connection = await connect(
            options.url,
            session,
            timer_wheel=self._timer_wheel,
            subprotocols=(self._codec.subprotocol,),
            headers=(("Authorization", f"Bearer {opening.credential}"),) if opening.credential else (),
            ssl=options.ssl(),
            proxy=options.proxy,
            timeout=DIAL_TIMEOUT,
            max_buffered=UNSENT,
            on_answer=opening.answered,
        )
        self._connections = {s: c for s, c in self._connections.items() if not c.transport.is_closing()}
        self._connections[session] = connection
        await first(session.welcome, session.closed, timeout=WELCOME_TIMEOUT)
        if session.welcome.done():
            if isinstance(token, AgentIdentity):
                token.welcomed(session.welcome.result().sid)
            return session
        if session.closed.done():
            return end_of_session(session, 0.0)
        session.leave(CloseCode.NORMAL, "no welcome in time")
        return AttemptEnd(f"no welcome within {WELCOME_TIMEOUT:g} s")

    async def leave(self) -> None:
        """Close everything that is open, because the process ends."""
        closing = [session for session in self._connections if not session.closed.done()]
        for session in closing:
            session.leave(CloseCode.GOING_AWAY, "the agent stops")
        if closing:
            await asyncio.wait([session.closed for session in closing], timeout=LEAVE_TIMEOUT)
        for connection in self._connections.values():
            connection.abort()
        self._connections.clear()
        self._timer_wheel.stop()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next iteration of the loop


async def first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until the first of `futures` is done, for at most `timeout` seconds."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
