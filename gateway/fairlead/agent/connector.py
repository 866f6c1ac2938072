"""Holds one link for ever: dial, greet, beat, leave when asked, and come back after the right time.

Owned by the agent. Every wait is jittered, the first one too, because a whole fleet loses its links in the same
instant. What the gateway says of the time (a drain's slot, a bye, Retry-After) overrides the policy.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.agent.session import Core, Session
from fairlead.carrier.client import connect
from fairlead.carrier.sweep import Sweep
from fairlead.errors import ConnectionRefused
from fairlead.wire.agent_link import AgentLink, Outbox
from fairlead.wire.close import Close, describe, may_reconnect
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import Hello, Retry, Welcome
from fairlead.wire.retry import STABLE_MS, RetryPolicy

logger = logging.getLogger("fairlead.agent")

DIAL_TIMEOUT = 15.0
"""Seconds for TCP, TLS and the upgrade, over a poor network."""
WELCOME_TIMEOUT = 30.0
"""Seconds from hello to welcome: the gateway may be waiting for its store."""
LEAVE_TIMEOUT = 2.0
SILENCE = 2.5
"""Heartbeats without a byte after which the link is dead, on both sides."""
UNSENT = 64 << 20
"""Bytes that may wait in the socket: the windows of the streams bound them long before."""
MISCONFIGURED = (401, 403, 404, 409, 426)
"""Refusals that a person has to mend: tried again all the same, as seldom as the policy allows."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `delay` (ms) until the next one if the gateway named it; `final`: there is none."""

    why: str
    delay: float | None = None
    final: bool = False
    slow: bool = False
    lived_ms: float = 0.0


class Connector:
    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        subprotocol: str,
        ssl: Any,
        hello: Callable[[], Hello],
        outbox: Outbox,
        core: Core,
    ) -> None:
        self._url = url
        self._headers = list(headers.items())
        self._codec = agent_codec(subprotocol)
        self._ssl = ssl
        self._hello = hello
        self._outbox = outbox
        self._core = core
        self._policy = RetryPolicy()
        self._sweep = Sweep()

    async def hold(self, stopping: asyncio.Event) -> Outcome | None:
        """Until `stopping` is set (None), or the gateway says not to come back (how it said so)."""
        attempt = 0
        async with self._sweep:
            while True:
                outcome = await self._attempt(stopping)
                if stopping.is_set():
                    return None
                if outcome.final:
                    return outcome
                if outcome.lived_ms >= STABLE_MS:
                    attempt = 0
                if outcome.delay is not None:
                    delay = outcome.delay
                elif outcome.slow:
                    delay = self._policy.cap * random.uniform(0.5, 1.0)
                else:
                    delay = self._policy.delay(attempt, random.random())
                attempt += 1
                logger.info("%s; connecting again in %.1f s", outcome.why, delay / 1000)
                try:
                    async with asyncio.timeout(delay / 1000):
                        await stopping.wait()
                    return None
                except TimeoutError:
                    pass

    async def leave(self, session: Session) -> None:
        """Close for good: what was written is sent first, but not for ever."""
        async with self._sweep:
            session.close(Close.GOING_AWAY, "the agent stops")
            await asyncio.wait({session.closed}, timeout=LEAVE_TIMEOUT)

    async def _attempt(self, stopping: asyncio.Event) -> Outcome:
        """One connection from the dial to its end."""
        session = Session(self._codec, AgentLink(self._outbox), self._hello(), self._core)
        try:
            await connect(
                self._url,
                session,
                sweep=self._sweep,
                subprotocols=(self._codec.subprotocol,),
                headers=self._headers,
                ssl=self._ssl,
                timeout=DIAL_TIMEOUT,
                max_buffered=UNSENT,
            )
        except ConnectionRefused as e:
            delay = None
            if e.retry_after is not None:
                # The header is the same for many: spread them over half as long again.
                delay = e.retry_after * 1000 * random.uniform(1.0, 1.5)
            return Outcome(e.message, delay, slow=e.status in MISCONFIGURED)
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT):
                first: set[asyncio.Future[Any]] = {session.welcome, session.closed}
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            session.close(Close.NORMAL, "no welcome in time")
            return Outcome(f"no welcome within {WELCOME_TIMEOUT:g} s")
        if not session.welcome.done():
            return self._ended(session, 0.0)
        return await self._live(session, session.welcome.result(), stopping)

    async def _live(self, session: Session, welcome: Welcome, stopping: asyncio.Event) -> Outcome:
        """A welcomed link: beat until it ends or is to be left."""
        retry: Retry = welcome.retry
        self._policy = RetryPolicy(retry.first, retry.base, retry.cap)
        beat = max(welcome.hb, 100) / 1000
        self._sweep.silence = beat * SILENCE
        logger.info("linked to %s, session %s, heartbeat %g s", self._url, welcome.sid, beat)
        began = time.monotonic()
        stop = asyncio.ensure_future(stopping.wait())
        try:
            while not session.closed.done() and not stop.done():
                idle = time.monotonic() - session.last_sent
                if idle >= beat:
                    session.beat()
                    idle = 0.0
                waits: set[asyncio.Future[Any]] = {session.closed, stop}
                if not session.leave.done():
                    waits.add(session.leave)
                await asyncio.wait(waits, timeout=beat - idle, return_when=asyncio.FIRST_COMPLETED)
                if session.leave.done():
                    return await self._drain(session, stop, (time.monotonic() - began) * 1000)
        finally:
            stop.cancel()
        if not session.closed.done():
            return Outcome("stopped")
        return self._ended(session, (time.monotonic() - began) * 1000)

    async def _drain(self, session: Session, stop: asyncio.Future[Any], lived_ms: float) -> Outcome:
        """The gateway wants this agent elsewhere: go at the slot, unless it closes first."""
        drain = session.leave.result()
        await asyncio.wait({session.closed, stop}, timeout=drain.slot / 1000, return_when=asyncio.FIRST_COMPLETED)
        if session.closed.done():
            return self._ended(session, lived_ms)
        session.close(Close.NORMAL, "drained")
        await asyncio.wait({session.closed}, timeout=LEAVE_TIMEOUT)
        if session.retry is not None:
            retry = session.retry
            self._policy = RetryPolicy(retry.first, retry.base, retry.cap)
        # The slots have spread the fleet already; a little jitter for those that shared one.
        return Outcome(f"drained ({drain.why})", random.uniform(0, 1000), lived_ms=lived_ms)

    def _ended(self, session: Session, lived_ms: float) -> Outcome:
        code, reason = session.closed.result()
        why = f"the link closed with {describe(code)}" + (f": {reason}" if reason else "")
        if not may_reconnect(code):
            return Outcome(why, final=True)
        delay = None if session.retry_ms is None else session.retry_ms * random.uniform(1.0, 1.5)
        return Outcome(why, delay, lived_ms=lived_ms)
