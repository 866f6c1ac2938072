"""Keeps the agent linked: it makes attempts, moves when the gateway asks for it, and reconnects after the right delay.

Owned by the agent. An agent that is to move opens its new link before it closes the old one, so that it can be reached
all the time. Until the new link is welcomed, the old one serves as before; if an attempt fails, the old one stays until
the gateway closes it. `dialer` makes the attempts, `backoff` says when.

Close codes from 4500 on, on either link, end the agent, because the same hello would be refused again. HTTP refusals
that somebody has to correct (401, 403, …) do not: the agent retries as seldom as the policy allows, because an agent
that gave up after a mistake in the gateway's configuration could only be brought back by hand, host by host. During a
move such refusals follow the usual policy, because a single node, such as a canary, may be at fault. A 404 is not one
of them: an ingress answers with it whenever the Service behind it is recreated, and for a wrong URL the policy's own
growth is slow enough.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Protocol, TypeVar

from fairlead.agent.link.attempt import AttemptEnd, AttemptLog, end_of_session
from fairlead.agent.link.backoff import Backoff
from fairlead.agent.link.dialer import Dialer, first
from fairlead.agent.link.options import ConnectOptions
from fairlead.agent.link.sender import Sender
from fairlead.agent.link.session import AgentSession, CommandReceiver
from fairlead.errors import ConnectionRefused
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Hello, Welcome

logger = logging.getLogger("fairlead.agent")

SETTLED = 5.0
"""Seconds that a link must have lived for its drain to be followed by an immediate attempt."""
SETTLED_DELAY = 1000.0
"""The longest delay in ms after a link that lived less: the protocol requires the attempt within a second of the
slot."""

T = TypeVar("T")


class LinkObserver(Protocol):
    """Is told the state of the link, in words."""

    def linked(self, status: str) -> None: ...
    def waiting(self, status: str) -> None: ...


class Connector:
    def __init__(
        self,
        options: ConnectOptions,
        subprotocol: str,
        sender: Sender,
        hello: Callable[[int, str], Hello],
        observer: LinkObserver,
    ) -> None:
        """`hello` is called for each attempt, with its number from 1 and the id of the last session."""
        self._url = options.url
        self._sender = sender
        self._observer = observer
        self._dialer = Dialer(options, subprotocol, sender, hello)
        self._backoff = Backoff()
        self._log = AttemptLog()
        self._session: AgentSession | None = None
        """The link in use. While the agent moves this is the old one, until the new one is welcomed."""
        self._facts: Mapping[str, str] | None = None
        """What is to be told instead of the facts of an earlier hello."""
        self._welcomed = 0.0
        """When `_session` was welcomed, by the event loop's clock."""

    async def run(self, receiver: CommandReceiver, on_resume: Callable[[Iterable[str]], None]) -> None:
        """Keep the agent linked. Raises ConnectionRefused if it must not connect again; otherwise never returns.
        `on_resume` is called at each welcome with the commands that cannot continue.
        """

        def on_welcome(session: AgentSession, welcome: Welcome) -> None:
            session.start_heartbeats(welcome.hb / 1000)
            on_resume(self._sender.attach(session, welcome))
            receiver.on_progress(tuple(self._sender.outbox.streams))
            self._replace(session, welcome)

        self._dialer.start()
        while True:
            made = await self._unless_told_otherwise(self._dialer.attempt(receiver, on_welcome))
            end: AttemptEnd | None = await self._hold(made) if isinstance(made, AgentSession) else made
            while end is not None:
                end = await self._pause(end)

    def tell_facts(self, facts: Mapping[str, str]) -> None:
        """The agent's facts have changed to these. They are told on the link in use, and on each new one whose hello
        had others."""
        self._facts = facts
        if self._session is not None:
            self._session.tell_facts(facts)

    async def leave(self) -> None:
        """Close all links, because the process ends. `run` has been cancelled before."""
        await self._dialer.leave()

    def _replace(self, session: AgentSession, welcome: Welcome) -> None:
        """`session` is welcomed: it is the link in use, and the old one, if there is one, is closed."""
        old, self._session = self._session, session
        self._welcomed = asyncio.get_running_loop().time()
        self._backoff.follow(welcome.retry)
        self._log.welcomed()
        self._observer.linked(f"linked to {self._url}")
        logger.info("linked to %s: session %s, heartbeat %g s", self._url, welcome.sid, welcome.hb / 1000)
        if self._facts is not None:
            session.tell_facts(self._facts)
        if old is not None:
            old.leave(CloseCode.NORMAL, "moved to a new link")

    async def _hold(self, session: AgentSession) -> AttemptEnd:
        """Use the link until it is closed or the agent is to move to a new one. Returns which of the two it was, and
        what follows.
        """
        await first(session.slot, session.closed)
        drain = session.drain
        if drain is not None and drain.retry is not None:
            self._backoff.follow(drain.retry)
        if session.closed.done():
            end = self._lose(session)
            closed_early = drain is not None and session.closed.result()[0] == CloseCode.RESTART
            if not closed_early or end.final or end.delay is not None:
                return end
        lived = asyncio.get_running_loop().time() - self._welcomed
        reason = f"drained ({drain.why})" if drain is not None else "drained"
        if lived >= SETTLED:  # the slots have already spread the agents
            return AttemptEnd(reason, moved=True, lived=lived)
        # A link that was drained soon after it was opened is followed by a short wait: something is wrong, and may go
        # wrong again.
        return AttemptEnd(reason, random.uniform(0, SETTLED_DELAY), moved=True, lived=lived)

    def _lose(self, session: AgentSession) -> AttemptEnd:
        """Forget the link in use, because it was closed."""
        self._session = None
        self._sender.detach(session)
        return end_of_session(session, asyncio.get_running_loop().time() - self._welcomed)

    async def _pause(self, end: AttemptEnd) -> AttemptEnd | None:
        """Wait until the next attempt. Raises ConnectionRefused if there must be none. Returns the end of the old link
        if it asks for another pause.
        """
        if end.final:
            raise ConnectionRefused(f"{end.reason}; the agent does not connect again")
        linked = self._session is not None
        delay = self._backoff.delay(end, linked)
        status = self._log.record(end, delay)
        if not linked:
            self._observer.waiting(status)
        return await self._unless_told_otherwise(asyncio.sleep(delay))

    async def _unless_told_otherwise(self, work: Coroutine[None, None, T]) -> T | AttemptEnd:
        """The result of `work`: an attempt, or the pause before it. An old link may be closed meanwhile, which changes
        nothing, unless its end forbids the attempt or names another time: then `work` is given up for that end.
        """
        old = self._session
        if old is None:
            return await work
        task = asyncio.ensure_future(work)
        try:
            await first(task, old.closed)
            if old is self._session and old.closed.done():
                end = self._lose(old)
                if end.final or end.delay is not None:
                    return end
                logger.info("%s while the agent was moving", end.reason)
            return await task
        finally:
            task.cancel()
            await asyncio.wait({task})
