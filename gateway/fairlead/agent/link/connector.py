"""Keeps the agent linked: connects, greets, moves when asked, and comes back after the right time.

Owned by the agent. Every wait is jittered, the first one too, because a whole fleet loses its links in the same
instant. What the gateway says of the time (a drain's slot, a bye, Retry-After) overrides the policy, within the
bounds of `wire.retry.pause`.

Close codes from 4500 on end it, because the same hello would meet the same end. HTTP refusals that somebody has to
correct (401, 403, …) do not: they are retried as seldom as the policy allows, because an agent that gives up on a
mistake in the gateway's configuration could only be brought back by hand, host by host. A 404 is not among them: an
ingress answers so whenever the Service behind it is recreated, and the policy's own growth is slow enough for a wrong
URL.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from fairlead.agent.link.attempt import AttemptEnd, AttemptLog, end_of_refusal, end_of_session
from fairlead.agent.link.options import ConnectOptions
from fairlead.agent.link.sender import Sender
from fairlead.agent.link.session import AgentSession, CommandReceiver
from fairlead.carrier.client import ClientConnection, connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConfigError, ConnectionRefused
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import Hello, Retry, Welcome
from fairlead.wire.retry import STABLE_MS, RetryPolicy, pause

logger = logging.getLogger("fairlead.agent")

DIAL_TIMEOUT = 10.0
"""Seconds for TCP, TLS and the upgrade: three SYNs of a poor network. An ingress that still sends to a node which is
gone lets an attempt hang so long, and the next one must come within 15 s of the loss."""
WELCOME_TIMEOUT = 30.0
"""Seconds from hello to welcome: the gateway may be waiting for its store."""
LEAVE_TIMEOUT = 2.0
"""Seconds to wait for the gateway's close frame when the process ends."""
SETTLED = 5.0
"""Seconds that a link must have lived for its drain to be followed by an attempt at once."""
SETTLED_DELAY = 1000.0
"""The longest delay in ms for a link that did not: the protocol wants the attempt within a second of the slot."""
UNSENT = 4 << 20
"""Bytes in the socket's buffer above which a link is given up. Results stop at 64 KiB; what exceeds them is acks,
credit and heartbeats."""


class LinkObserver(Protocol):
    """Is told of the state of the link, in words."""

    def linked(self, status: str) -> None: ...
    def waiting(self, status: str) -> None: ...


class Connector:
    def __init__(
        self,
        options: ConnectOptions,
        subprotocol: str,
        sender: Sender,
        hello: Callable[[str], Hello],
        observer: LinkObserver,
    ) -> None:
        """`hello` is called for each attempt, with the id of the last session."""
        self._options = options
        self._codec = agent_codec(subprotocol)
        self._sender = sender
        self._hello = hello
        self._observer = observer
        self._policy = RetryPolicy()
        # Only for the closing handshake's deadline: silence is the session's own matter.
        self._timer_wheel = TimerWheel(silence=3600.0, tick=1.0)
        self._session: AgentSession | None = None
        self._connections: set[ClientConnection] = set()
        """That of the link, and of former links that wait for the gateway to close."""
        self._sid = ""
        self._log = AttemptLog()

    async def run(self, receiver: CommandReceiver, on_resume: Callable[[Iterable[str]], None]) -> None:
        """Stay linked, for ever or until ConnectionRefused: the gateway does not want this agent back. `on_resume` is
        called at each welcome with the commands that cannot continue.
        """
        attempt = 0
        self._timer_wheel.start()
        while True:
            end = await self._attempt(receiver, on_resume)
            if end.final:
                raise ConnectionRefused(f"{end.reason}; the agent does not connect again")
            if end.lived * 1000 >= STABLE_MS:
                attempt = 0
            delay = 0.0 if end.moved else self._delay(end, attempt)
            attempt += not end.moved
            self._observer.waiting(self._log.record(end, delay / 1000))
            await asyncio.sleep(delay / 1000)

    async def leave(self) -> None:
        """The process ends: close the link, if there is one. `run` was cancelled before."""
        session = self._session
        if session is not None and not session.closed.done():
            session.leave(CloseCode.GOING_AWAY, "the agent stops")
            await asyncio.wait({session.closed}, timeout=LEAVE_TIMEOUT)
        for connection in self._connections:
            connection.abort()
        self._timer_wheel.stop()
        await asyncio.sleep(0)  # a transport that is aborted closes its socket in the next iteration of the loop

    def _delay(self, end: AttemptEnd, attempt: int) -> float:
        """Milliseconds before retry number `attempt`."""
        draw = random.random()
        delay = end.delay
        if delay is None:
            delay = self._policy.slow(draw) if end.slow else self._policy.delay(attempt, draw)
        return pause(delay, attempt, draw)

    async def _attempt(self, receiver: CommandReceiver, on_resume: Callable[[Iterable[str]], None]) -> AttemptEnd:
        """One connection, from connecting to its end."""

        def on_welcome(session: AgentSession, welcome: Welcome) -> None:
            session.start_heartbeats(welcome.hb / 1000)
            on_resume(self._sender.attach(session, welcome))
            receiver.on_progress(tuple(self._sender.outbox.streams))

        session = AgentSession(
            self._codec, AgentLink(self._sender.outbox), self._hello(self._sid), receiver, on_welcome
        )
        options = self._options
        try:
            connection = await connect(
                options.url,
                session,
                timer_wheel=self._timer_wheel,
                subprotocols=(self._codec.subprotocol,),
                headers=(("Authorization", f"Bearer {options.token()}"),),
                ssl=options.ssl,
                proxy=options.proxy,
                timeout=DIAL_TIMEOUT,
                max_buffered=UNSENT,
            )
        except ConnectionRefused as e:
            return end_of_refusal(e)
        except ConfigError as e:
            return AttemptEnd(e.message)
        self._session = session
        self._connections = {c for c in self._connections if not c.transport.is_closing()} | {connection}
        try:
            return await self._serve(session)
        finally:
            self._sender.detach()

    async def _serve(self, session: AgentSession) -> AttemptEnd:
        """The connection is open: wait for welcome, then for its end."""
        loop = asyncio.get_running_loop()
        await _first(session.welcome, session.closed, timeout=WELCOME_TIMEOUT)
        if not session.welcome.done():
            if session.closed.done():
                return end_of_session(session, 0.0)
            session.leave(CloseCode.NORMAL, "no welcome in time")
            return AttemptEnd(f"no welcome within {WELCOME_TIMEOUT:g} s")
        welcomed = loop.time()
        welcome = session.welcome.result()
        self._sid = welcome.sid
        self._set_policy(welcome.retry)
        self._log.welcomed()
        self._observer.linked(f"linked to {self._options.url}")
        logger.info("linked to %s: session %s, heartbeat %g s", self._options.url, welcome.sid, welcome.hb / 1000)
        await _first(session.drain, session.closed)
        if not session.drain.done():
            return end_of_session(session, loop.time() - welcomed)
        # The gateway wants this agent elsewhere: leave at the slot, unless the gateway closes first.
        drain = session.drain.result()
        if drain.retry is not None:
            self._set_policy(drain.retry)
        await asyncio.wait({session.closed}, timeout=drain.slot / 1000)
        lived = loop.time() - welcomed
        if session.closed.done():
            end = end_of_session(session, lived)
            if end.final or end.delay is not None or session.closed.result()[0] != CloseCode.RESTART:
                return end
        session.leave(CloseCode.NORMAL, "drained")
        reason = f"drained ({drain.why})"
        if lived >= SETTLED:  # the slots have spread the fleet already
            return AttemptEnd(reason, moved=True, lived=lived)
        # A link that was drained as soon as it was made is followed by a short wait: something is wrong there, and
        # would be again.
        return AttemptEnd(reason, random.uniform(0, SETTLED_DELAY), lived=lived)

    def _set_policy(self, retry: Retry) -> None:
        self._policy = RetryPolicy(retry.first, retry.base, retry.cap).bounded()


async def _first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
