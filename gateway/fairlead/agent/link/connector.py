"""Holds one link for ever: dial, greet, go elsewhere when asked, and come back after the right time.

Owned by the agent. Every wait is jittered, the first one too, because a whole fleet loses its links in the same
instant. What the gateway says of the time (a drain's slot, a bye, Retry-After) overrides the policy, within the bounds
of `wire.retry.pause`. Why an attempt failed is told once, not at each attempt: a gateway that is away for a night must
not fill a thousand disks.

Close codes from 4500 on end it, for the same hello would meet the same end. The HTTP refusals that somebody has to
mend (401, 403, …) do not: they are tried again as seldom as the policy allows, because an agent that gives up on a
fault of the gateway's configuration can be brought back only by hand, host by host. A 404 is not among them: an ingress
answers so whenever the Service behind it is made anew, and the policy's own growth is slow enough for a wrong URL.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl as tls
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from fairlead.agent.link.sender import Sender
from fairlead.agent.link.session import AgentSession, CommandReceiver
from fairlead.carrier.client import ClientConnection, connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConfigError, ConnectionRefused
from fairlead.text import plain
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.close_codes import CloseCode, describe, may_reconnect
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
"""Ceiling in ms for one that did not: the protocol wants the attempt within a second of the slot."""
UNSENT = 4 << 20
"""Bytes in the socket's buffer above which a link is given up. Results stop at 64 KiB; what goes past them is acks,
credit and heartbeats."""
MISCONFIGURED = (400, 401, 403, 407, 409, 426, 431)
REMIND = 3600.0
"""Seconds until a cause that stands is told again."""
CAUSES = 64
"""Causes that are remembered; a gateway that invents more has its log lines."""


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """How an attempt ended. `delay` in ms if the gateway named it; `slow`: somebody has to mend something first;
    `moved`: a settled link was drained, which is no failure and is followed by an attempt at once.
    """

    why: str
    delay: float | None = None
    slow: bool = False
    final: bool = False
    moved: bool = False
    lived: float = 0.0
    """Seconds since welcome."""
    said: str = ""
    """What the other end said to it. It may hold a number or a time, and makes no cause of its own."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How the gateway is reached. `token` is asked before each attempt and raises ConfigError when it cannot be had."""

    url: str
    token: Callable[[], str]
    ssl: tls.SSLContext | None = None
    proxy: str | None = None


class LinkObserver(Protocol):
    """Who is told how it stands, in words."""

    def linked(self, status: str) -> None: ...
    def waiting(self, status: str) -> None: ...


class Connector:
    def __init__(
        self,
        route: ConnectOptions,
        subprotocol: str,
        sender: Sender,
        hello: Callable[[str], Hello],
        watch: LinkObserver,
    ) -> None:
        """`hello` is asked for each attempt, with the id of the last session."""
        self._route = route
        self._codec = agent_codec(subprotocol)
        self._sender = sender
        self._hello = hello
        self._policy = RetryPolicy()
        # Only the closing handshake's deadline: silence is the session's own matter.
        self._timer_wheel = TimerWheel(silence=3600.0, tick=1.0)
        self._session: AgentSession | None = None
        self._connections: set[ClientConnection] = set()
        """That of the link, and of former ones that wait for the gateway to close."""
        self._sid = ""
        self._watch = watch
        self._told: dict[str, float] = {}
        """Causes since the last link, and when each was told."""

    async def hold(self, receiver: CommandReceiver, resumed: Callable[[Iterable[str]], None]) -> None:
        """For ever, or until ConnectionRefused: the gateway does not want this agent back. `resumed` is told at each
        welcome which commands cannot go on.
        """
        attempt = 0
        self._timer_wheel.start()
        while True:
            ending = await self._attempt(receiver, resumed)
            if ending.final:
                raise ConnectionRefused(f"{ending.why}; the agent does not connect again")
            if ending.lived * 1000 >= STABLE_MS:
                attempt = 0
            delay = 0.0 if ending.moved else self._delay(ending, attempt)
            attempt += not ending.moved
            self._tell(ending, delay / 1000)
            await asyncio.sleep(delay / 1000)

    async def leave(self) -> None:
        """The process ends: say goodbye, if there is a link. `hold` was cancelled before."""
        session = self._session
        if session is not None and not session.closed.done():
            session.leave(CloseCode.GOING_AWAY, "the agent stops")
            await asyncio.wait({session.closed}, timeout=LEAVE_TIMEOUT)
        for connection in self._connections:
            connection.abort()
        self._timer_wheel.stop()
        await asyncio.sleep(0)  # a transport that is aborted closes its socket in the next turn of the loop

    def _tell(self, ending: LinkEnd, delay: float) -> None:
        """In a line of its own for each cause since the last link; the same one again is for debugging."""
        now = asyncio.get_running_loop().time()
        told = self._told.get(ending.why)
        again = told is not None and now - told < REMIND
        if not again:
            if len(self._told) >= CAUSES:
                self._told.clear()
            self._told[ending.why] = now
        level = logging.DEBUG if again else logging.WARNING if ending.slow or not ending.lived else logging.INFO
        said = f" ({ending.said})" if ending.said else ""
        when = f"in {delay:.1f} s" if delay >= 0.05 else "at once"
        logger.log(level, "%s%s; connecting again %s", ending.why, said, when)
        self._watch.waiting(f"not linked: {ending.why}{said}")

    def _delay(self, ending: LinkEnd, attempt: int) -> float:
        """In ms, before retry number `attempt`."""
        draw = random.random()
        asked = ending.delay
        if asked is None:
            asked = self._policy.slow(draw) if ending.slow else self._policy.delay(attempt, draw)
        return pause(asked, attempt, draw)

    async def _attempt(self, receiver: CommandReceiver, resumed: Callable[[Iterable[str]], None]) -> LinkEnd:
        """One connection, from the dial to its end."""

        def welcomed(session: AgentSession, welcome: Welcome) -> None:
            session.begin_beat(welcome.hb / 1000)
            resumed(self._sender.attach(session, welcome))
            receiver.moved(tuple(self._sender.outbox.streams))

        session = AgentSession(self._codec, AgentLink(self._sender.outbox), self._hello(self._sid), receiver, welcomed)
        route = self._route
        try:
            connection = await connect(
                route.url,
                session,
                timer_wheel=self._timer_wheel,
                subprotocols=(self._codec.subprotocol,),
                headers=(("Authorization", f"Bearer {route.token()}"),),
                ssl=route.ssl,
                proxy=route.proxy,
                timeout=DIAL_TIMEOUT,
                max_buffered=UNSENT,
            )
        except ConnectionRefused as e:
            return _refused(e)
        except ConfigError as e:
            return LinkEnd(e.message)
        self._session = session
        self._connections = {c for c in self._connections if not c.transport.is_closing()} | {connection}
        try:
            return await self._serve(session)
        finally:
            self._sender.detach()

    async def _serve(self, session: AgentSession) -> LinkEnd:
        """An open connection: wait for welcome, then for its end."""
        loop = asyncio.get_running_loop()
        await _first(session.welcome, session.closed, timeout=WELCOME_TIMEOUT)
        if not session.welcome.done():
            if session.closed.done():
                return self._closed(session, 0.0)
            session.leave(CloseCode.NORMAL, "no welcome in time")
            return LinkEnd(f"no welcome within {WELCOME_TIMEOUT:g} s")
        began = loop.time()
        welcome = session.welcome.result()
        self._sid = welcome.sid
        self._follow(welcome.retry)
        self._told.clear()
        self._watch.linked(f"linked to {self._route.url}")
        logger.info("linked to %s: session %s, heartbeat %g s", self._route.url, welcome.sid, welcome.hb / 1000)
        await _first(session.drain, session.closed)
        if not session.drain.done():
            return self._closed(session, loop.time() - began)
        # The gateway wants this agent elsewhere: go at the slot, unless it closes first.
        drain = session.drain.result()
        if drain.retry is not None:
            self._follow(drain.retry)
        await asyncio.wait({session.closed}, timeout=drain.slot / 1000)
        lived = loop.time() - began
        if session.closed.done():
            ending = self._closed(session, lived)
            if ending.final or ending.delay is not None or session.closed.result()[0] != CloseCode.RESTART:
                return ending
        session.leave(CloseCode.NORMAL, "drained")
        why = f"drained ({drain.why})"
        if lived >= SETTLED:  # the slots have spread the fleet already
            return LinkEnd(why, moved=True, lived=lived)
        # A link that was drained as soon as it was made is waited for a little: something is wrong there, and would
        # be again.
        return LinkEnd(why, random.uniform(0, SETTLED_DELAY), lived=lived)

    def _follow(self, retry: Retry) -> None:
        self._policy = RetryPolicy(retry.first, retry.base, retry.cap).bounded()

    @staticmethod
    def _closed(session: AgentSession, lived: float) -> LinkEnd:
        code, reason = session.closed.result()
        why = f"the link closed with {describe(code)}" + (f": {plain(reason)}" if reason else "")
        if session.by_us:
            # We found the gateway in the wrong: the next node may run another version.
            return LinkEnd(why, lived=lived)
        if not may_reconnect(code):
            return LinkEnd(why, final=True)
        delay = None
        if session.bye is not None and session.bye.retry is not None:
            delay = float(session.bye.retry)
        return LinkEnd(why, delay, lived=lived)


async def _first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def _refused(e: ConnectionRefused) -> LinkEnd:
    delay = None
    if e.retry_after is not None:
        # The header knows whole seconds only: those that got the same are spread over half as long again.
        delay = e.retry_after * 1000 * random.uniform(1.0, 1.5)
    why = plain(e.message)
    if e.status == 401:
        why += (
            ": it does not know the agent's token, or no longer; put the right one where the agent has it from, "
            "a token_file is read again at each attempt"
        )
    return LinkEnd(why, delay, slow=e.status in MISCONFIGURED, said=_said(e.body))


def _said(body: bytes) -> str:
    """A refusal's body in a line: the detail of a problem (RFC 9457), or its beginning."""
    try:
        text = msgspec.json.decode(body, type=_Problem).detail
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = body[:200].decode(errors="replace")
    return plain(" ".join(text.split()))[:300]


class _Problem(msgspec.Struct):
    detail: str
