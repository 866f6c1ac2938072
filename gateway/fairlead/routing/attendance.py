"""Keeps leases in step with the hub: claim at hello, welcome, release at the end, re-claim after a fencing.

It serves the sessions (hub's `Attendant`) and hands what they bring to the recorder and the deliveries. A claim
that cannot be made because Redis is away is made again until it can: the agent waits on its open link. A link that
died during its claim is released, so that no agent seems online on a link that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import deque
from dataclasses import dataclass

from fairlead.bus.doorbell import Evict
from fairlead.bus.inbox import Inbox
from fairlead.carrier.sweep import Sweep
from fairlead.errors import BusUnavailable, InvalidRequest
from fairlead.fleet.commands import Commands, Taken
from fairlead.fleet.directory import Claimed, Directory, Overtaken
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.delivery import Deliveries
from fairlead.routing.recorder import Recorder
from fairlead.routing.standing import VALID_MS, Standing
from fairlead.routing.tasks import Tasks
from fairlead.store.pipeliner import Pipeliner
from fairlead.telemetry import Metrics
from fairlead.wire.close import Close
from fairlead.wire.identity import check_agent_id
from fairlead.wire.messages import Hello, Limits, Retry, Welcome
from fairlead.wire.retry import first_ceiling

logger = logging.getLogger(__name__)

CLAIMS_AT_ONCE = 512
"""Two full batches of the store: more would only wait there, at the price of a task's frame each."""
RELEASES_AT_ONCE = 256
RECLAIM_BATCH = 200
RECLAIM_PAUSE = 0.1
"""2,000 re-claims a second: a full node is back in ten seconds and leaves room for commands."""


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """What welcome tells every agent."""

    heartbeat_ms: int
    hello_timeout: float
    limits: Limits
    accept_rate: float
    bus_grace: float


class Attendance:
    def __init__(
        self,
        store: Pipeliner,
        directory: Directory,
        records: Commands,
        hub: Hub,
        inbox: Inbox,
        recorder: Recorder,
        deliveries: Deliveries,
        standing: Standing,
        sweep: Sweep,
        tasks: Tasks,
        metrics: Metrics,
        terms: LinkTerms,
    ) -> None:
        self._store = store
        self._directory = directory
        self._records = records
        self._hub = hub
        self._inbox = inbox
        self._recorder = recorder
        self._deliveries = deliveries
        self._standing = standing
        self._hello = sweep.deadline(terms.hello_timeout)
        self._tasks = tasks
        self._metrics = metrics
        self._terms = terms
        self._claims = asyncio.Semaphore(CLAIMS_AT_ONCE)
        self._departed: deque[tuple[str, str, int, bool]] = deque()
        self._departure = asyncio.Event()

    # -- Attendant ---------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        self._hub.connections += 1
        self._hello.add(session, _late)

    def greeted(self, session: Session, hello: Hello) -> None:
        self._hello.discard(session)
        try:
            session.agent = check_agent_id(hello.agent)
        except InvalidRequest as e:
            session.close(Close.PROTOCOL, e.message)
            return
        session.boot, session.conn = hello.boot, hello.conn
        session.sid = secrets.token_hex(8)
        self._tasks.spawn(self._admit(session, hello))

    def received(self, session: Session) -> None:
        self._recorder.record(session)

    def granted(self, session: Session, command: str) -> None:
        self._deliveries.granted(session, command)

    def answered(self, session: Session, rtt_ms: float) -> None:
        self._metrics.rtt.observe(rtt_ms / 1000)

    def closed(self, session: Session, code: int, reason: str) -> None:
        self._hub.connections -= 1
        self._hello.discard(session)
        self._metrics.closed.labels(str(code)).inc()
        if session.gen:
            self._hub.remove(session)
            self._depart(session, code)

    # -- claim and welcome -------------------------------------------------------------------------

    async def _admit(self, session: Session, hello: Hello) -> None:
        """From hello to welcome. Ends early when the link closes meanwhile."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        attempt = 0
        while session.open:
            try:
                async with self._claims:
                    if await self._attempt(session, hello):
                        self._hub.accepted += 1
                        self._metrics.opened.inc()
                        self._metrics.delivery.observe(loop.time() - started)
                    return
            except BusUnavailable as e:
                attempt += 1
                left = self._terms.bus_grace - (loop.time() - started)
                if left <= 0:
                    session.close(Close.BUS_AWAY, "the gateway has lost Redis: come back later")
                    break
                logger.debug("claim of %s, attempt %d: %s", session.agent, attempt, e)
                await self._store.wait_available(left)
                # Jittered: all that wait are let go in the same instant.
                await asyncio.sleep(random.uniform(0, min(0.1 * attempt, 1.0)))
            except Exception:
                logger.exception("the claim of %s failed", session.agent)
                session.close(Close.INTERNAL, "the gateway could not take this agent in")
        if attempt:
            # An attempt may have been executed although its answer never came, or may yet be, while it is valid.
            await asyncio.sleep(VALID_MS / 1000)
            self._depart(session, Close.ABNORMAL)

    async def _attempt(self, session: Session, hello: Hello) -> bool:
        """One claim and what follows from it; False when this session does not become the agent's."""
        standing = self._standing
        if not standing.good:
            raise BusUnavailable("this node has no good beat: it may not claim")
        if self._hub.draining:
            session.close(Close.RESTART, "the node restarts")
            return False
        lease = standing.lease
        claimed = await self._directory.claim(
            session.agent, lease, session.boot, session.conn, session.sid, hello.facts, standing.valid_until()
        )  # fmt: skip
        if isinstance(claimed, Overtaken):
            if claimed.why == "late":
                raise BusUnavailable("the claim came too late and was refused")
            session.close(Close.SUPERSEDED, "superseded by a newer attempt of the same process")
            return False
        session.gen = claimed.gen
        if not session.open or not self._hub.add(session):
            session.close(Close.SUPERSEDED, "superseded by a newer link")
            self._depart(session, Close.ABNORMAL)
            return False
        self._evict_elsewhere(session, claimed)
        taken = await self._take_over(session, claimed.open)
        if lease != standing.lease:
            raise BusUnavailable("this node began a new life during the claim")
        if self._hub.draining:
            session.drained = True
            session.close(Close.RESTART, "the node restarts")
        if not session.open:
            return False
        self._welcome(session, hello, claimed, taken)
        return True

    def _evict_elsewhere(self, session: Session, claimed: Claimed) -> None:
        if claimed.previous and claimed.previous != self._standing.lease:
            code = Close.SUPERSEDED if claimed.previous_boot == session.boot else Close.REPLACED
            self._inbox.ring(claimed.previous, (Evict(session.agent, claimed.previous_gen, code),))

    async def _take_over(self, session: Session, open_commands: list[str]) -> dict[str, Taken]:
        """Become the owner of the agent's open commands; returns those that go on."""
        if not open_commands:
            return {}
        fences = [self._records.take_over(c, session.agent, session.gen, session.boot) for c in open_commands]
        answers = await asyncio.gather(*fences)
        taken: dict[str, Taken] = {}
        for command, found in zip(open_commands, answers, strict=True):
            if isinstance(found, Taken):
                taken[command] = found
            else:
                self._deliveries.settled(session.agent, command, found)
        return taken

    def _welcome(self, session: Session, hello: Hello, claimed: Claimed, taken: dict[str, Taken]) -> None:
        terms = self._terms
        session.link.welcomed()
        session.send(
            Welcome(
                sid=session.sid,
                gen=claimed.gen,
                now=claimed.now,
                hb=terms.heartbeat_ms,
                resumed=claimed.previous_boot == session.boot and hello.conn > 1,
                have={command: found.next for command, found in taken.items() if not found.queued},
                limits=terms.limits,
                retry=Retry(first=first_ceiling(self._hub.connections, terms.accept_rate)),
            )
        )
        self._take_up(session, taken, hello.have)

    def _take_up(self, session: Session, taken: dict[str, Taken], have: dict[str, int]) -> None:
        """Open the streams that the agent may know, and deliver what it has not acked."""
        for command, found in taken.items():
            if not found.queued and session.link.stream(command) is None:
                session.link.opened(command, found.next, have.get(command, 0))
                self._deliveries.carry_on(session, command, found.cancelled)
        self._deliveries.deliver(session, [command for command, found in taken.items() if not found.running])

    # -- release -----------------------------------------------------------------------------------

    def _depart(self, session: Session, code: int) -> None:
        self._departed.append((session.agent, session.sid, code, session.drained))
        self._departure.set()

    async def release_forever(self) -> None:
        """The node's releasing loop: gives up the leases of sessions that ended, however long Redis is away.

        The queue needs no bound of its own: it holds at most what had a link, and shrinks when Redis answers.
        """
        while True:
            if not self._departed:
                self._departure.clear()
                await self._departure.wait()
            await self.release_departed()

    async def release_departed(self) -> None:
        batch = [self._departed.popleft() for _ in range(min(len(self._departed), RELEASES_AT_ONCE))]
        answers = await asyncio.gather(
            *(self._directory.release(*departed) for departed in batch), return_exceptions=True
        )
        failed = [d for d, answer in zip(batch, answers, strict=True) if isinstance(answer, BusUnavailable)]
        for departed, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception) and not isinstance(answer, BusUnavailable):
                logger.error("the lease of %s could not be released", departed[0], exc_info=answer)
        if failed:
            self._departed.extend(failed)
            await self._store.wait_available(1.0)
            await asyncio.sleep(random.uniform(0.0, 0.1))

    @property
    def departed(self) -> int:
        """Leases that are still to be given up."""
        return len(self._departed)

    # -- after a fencing ---------------------------------------------------------------------------

    async def reclaim(self) -> None:
        """This node began a new life: claim again every agent that nobody else has claimed since.

        Paced; while Redis is away it waits, since links stay up for that. Those that were lost are closed.
        """
        waiting = deque(session for session in self._hub if session.ready)
        kept = lost = 0
        while waiting:
            batch = [waiting.popleft() for _ in range(min(RECLAIM_BATCH, len(waiting)))]
            answers = await asyncio.gather(*map(self._reclaim_one, batch), return_exceptions=True)
            for session, answer in zip(batch, answers, strict=True):
                if isinstance(answer, BusUnavailable):
                    waiting.append(session)
                elif isinstance(answer, BaseException):
                    logger.error("claiming %s again failed", session.agent, exc_info=answer)
                    session.close(Close.INTERNAL, "the gateway could not take this agent in again")
                elif answer:
                    kept += 1
                elif session.open:
                    lost += 1
                    session.close(Close.SUPERSEDED, "this node was cut off and another owns the agent now")
            await self._store.wait_available(self._terms.bus_grace)
            await asyncio.sleep(RECLAIM_PAUSE)
        logger.warning("claimed %d agents again, lost %d to other nodes", kept, lost)

    async def _reclaim_one(self, session: Session) -> bool:
        if not session.ready:
            return False
        standing = self._standing
        claimed = await self._directory.claim(
            session.agent, standing.lease, session.boot, session.conn, session.sid, {}, standing.valid_until(),
            again=True,
        )  # fmt: skip
        if isinstance(claimed, Overtaken):
            if claimed.why == "late":
                raise BusUnavailable("the claim came too late and was refused")
            return False
        session.gen = claimed.gen
        taken = await self._take_over(session, claimed.open)
        if session.ready:
            # What is open on this link goes on; what was dispatched meanwhile is delivered.
            streams = session.link.streams or {}
            self._take_up(session, {c: found for c, found in taken.items() if c not in streams}, {})
        return True


def _late(session: Session) -> None:
    # Not the agent's fault alone: after a stall of this process every hello seems late. So: come again.
    session.close(Close.SILENT, "no hello in time")
