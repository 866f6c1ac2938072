"""Takes agents in and sees them off: claim at hello, welcome, release at the end.

It serves the sessions (hub's `SessionHandler`) and hands what they bring to the recorder and the deliveries. A claim
that cannot be made because Redis is away is made again until it can: the agent waits on its open link. A link that
died during its claim is released, so that no agent seems online on a link that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass

import msgspec

from fairlead.bus.doorbell import LinkSuperseded
from fairlead.bus.inbox import Inbox
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import BusUnavailable, InvalidRequest
from fairlead.fleet.command_record import TakenOver
from fairlead.fleet.directory import Claimed, Directory, Overtaken
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.agents.lease_release import LeaseReleaser
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.delivery.command_delivery import CommandDelivery
from fairlead.routing.delivery.recorder import Recorder
from fairlead.routing.delivery.takeover import Takeover
from fairlead.routing.membership.membership import Membership
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.timeouts import VALID_MS, wait_for_redis
from fairlead.store.pipeliner import Pipeliner
from fairlead.telemetry.logs import ids
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import wall_ns
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.ids import check_agent_id
from fairlead.wire.messages import FACTS_LIMIT, Hello, Limits, Retry, Welcome
from fairlead.wire.retry import HANDED_OUT_MS, first_ceiling

logger = logging.getLogger(__name__)

NO_FACTS = b"{}"
CLAIMS_AT_ONCE = 128
"""Some batches of the store: more would only wait there, at the price of a task's frame each, and of the room that
lists and comparisons share with claims."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What welcome tells every agent."""

    heartbeat_ms: int
    hello_timeout: float
    limits: Limits
    accept_rate: float
    bus_grace: float


class Registration:
    def __init__(
        self,
        store: Pipeliner,
        directory: Directory,
        hub: Hub,
        inbox: Inbox,
        recorder: Recorder,
        deliveries: CommandDelivery,
        takeover: Takeover,
        lease_releaser: LeaseReleaser,
        membership: Membership,
        timer_wheel: TimerWheel,
        tasks: BackgroundTasks,
        telemetry: TelemetryRecorder,
        metrics: Metrics,
        terms: LinkSettings,
    ) -> None:
        self.message_counters = metrics.message_counters
        self.totals = hub.totals
        self._store = store
        self._directory = directory
        self._hub = hub
        self._inbox = inbox
        self._recorder = recorder
        self._deliveries = deliveries
        self._takeover = takeover
        self._lease_releaser = lease_releaser
        self._membership = membership
        self._hello = timer_wheel.timeout_queue(terms.hello_timeout)
        self._tasks = tasks
        self._telemetry = telemetry
        self._metrics = metrics
        self._terms = terms
        self._claims = asyncio.Semaphore(CLAIMS_AT_ONCE)

    # -- Attendant ---------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        self._hub.links += 1
        self._hello.add(session, _late)
        _stamp(session, 2)

    def greeted(self, session: Session, hello: Hello) -> None:
        self._hello.discard(session)
        _stamp(session, 3)
        try:
            session.agent = check_agent_id(hello.agent)
        except InvalidRequest as e:
            session.close(CloseCode.PROTOCOL, e.message)
            return
        facts = msgspec.json.encode(hello.facts) if hello.facts else NO_FACTS
        if len(facts) > FACTS_LIMIT:
            session.close(
                CloseCode.PROTOCOL,
                f"facts of {len(facts)} bytes as JSON exceed max {FACTS_LIMIT}: send fewer or shorter",
            )
            return
        session.boot, session.conn, session.facts = hello.boot, hello.conn, facts
        session.memory = hello.caps.journal or hello.boot
        session.sid = secrets.token_hex(8)
        self._tasks.spawn(self._admit(session, hello))

    def received(self, session: Session) -> None:
        self._recorder.record(session)

    def granted(self, session: Session, command: str) -> None:
        self._deliveries.granted(session, command)

    def answered(self, session: Session, rtt_ms: float) -> None:
        self._metrics.rtt.observe(rtt_ms / 1000)

    def closed(self, session: Session, code: int, reason: str) -> None:
        self._hub.links -= 1
        self._hello.discard(session)
        lived = asyncio.get_running_loop().time() - session.since if session.since else 0.0
        self._telemetry.left(session, lived, code, reason)
        if session.gen:
            self._hub.remove(session)
            self._lease_releaser.add(session, code, reason)

    # -- claim and welcome -------------------------------------------------------------------------

    async def _admit(self, session: Session, hello: Hello) -> None:
        """From hello to welcome. Ends early when the link closes meanwhile."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        unsure = False
        """A claim may have been executed although its answer never came, or may yet be, while it is valid."""
        while session.open:
            try:
                async with self._claims:
                    # A link may be lost while it waits: its claim could take the agent from the next start of it.
                    if session.open and await self._attempt(session, hello):
                        self._hub.accepted += 1
                        self._metrics.claim.observe(loop.time() - started)
                break
            except BusUnavailable as e:
                unsure = True
                left = self._terms.bus_grace - (loop.time() - started)
                if left <= 0:
                    session.close(CloseCode.BUS_AWAY, "the gateway has lost Redis: come back later")
                    break
                logger.debug("claim of %s: %s", session.agent, e)
                await wait_for_redis(self._store, left)
            except Exception:
                logger.exception("the claim of %s failed", session.agent, extra=ids(agent=session.agent))
                session.close(CloseCode.INTERNAL, "the gateway could not take this agent in")
        if not session.open and unsure:
            await asyncio.sleep(VALID_MS / 1000)
            self._lease_releaser.add(session, CloseCode.ABNORMAL, "the link was lost before its welcome")

    async def _attempt(self, session: Session, hello: Hello) -> bool:
        """One claim and what follows from it; False when this session does not become the agent's."""
        membership = self._membership
        if not membership.alive:
            raise BusUnavailable("this node has no good beat: it may not claim")
        if self._hub.draining:
            session.close(CloseCode.RESTART, "the node restarts")
            return False
        lease = membership.lease
        claimed = await self._directory.claim(
            session.agent, lease, session.boot, session.conn, session.sid, session.facts, membership.valid_until(),
            known=membership.rebuilding and session.conn > 1,
        )  # fmt: skip
        if isinstance(claimed, Overtaken):
            if claimed.why == "late":
                raise BusUnavailable("the claim came too late and was refused")
            session.close(CloseCode.SUPERSEDED, "superseded by a newer attempt of the same process")
            return False
        session.gen = claimed.gen
        _stamp(session, 4)
        if not session.open or not self._hub.add(session):
            newer = self._hub.get(session.agent)
            same = newer is None or newer.boot == session.boot
            session.close(CloseCode.SUPERSEDED if same else CloseCode.REPLACED, "superseded by a newer link")
            self._lease_releaser.add(session, CloseCode.ABNORMAL, "superseded by a newer link")
            return False
        self._evict_elsewhere(session, claimed)
        taken = await self._takeover.fence(session, claimed.open)
        if lease != membership.lease:
            raise BusUnavailable("this node began a new life during the claim")
        if self._hub.draining:
            session.drained = True
            session.close(CloseCode.RESTART, "the node restarts")
        if not session.open:
            return False
        self._welcome(session, hello, claimed, taken)
        return True

    def _evict_elsewhere(self, session: Session, claimed: Claimed) -> None:
        if claimed.previous and claimed.previous != self._membership.lease:
            code = CloseCode.SUPERSEDED if claimed.previous_boot == session.boot else CloseCode.REPLACED
            self._inbox.ring(claimed.previous, (LinkSuperseded(session.agent, claimed.previous_gen, code),))

    def _welcome(self, session: Session, hello: Hello, claimed: Claimed, taken: dict[str, TakenOver]) -> None:
        terms = self._terms
        session.link.welcomed()
        session.since = asyncio.get_running_loop().time()
        resumed = claimed.previous_boot == session.boot and hello.conn > 1
        session.send(
            Welcome(
                sid=session.sid,
                gen=claimed.gen,
                now=claimed.now,
                hb=terms.heartbeat_ms,
                resumed=resumed,
                have={command: found.next for command, found in taken.items() if not found.queued},
                limits=terms.limits,
                retry=Retry(first_ceiling(self._hub.links, terms.accept_rate), cap=HANDED_OUT_MS),
            )
        )
        self._telemetry.welcomed(session, resumed)
        self._takeover.take_up(session, taken, hello.have)


def _stamp(session: Session, step: int) -> None:
    """One more step of the link's opening is done, for its phases."""
    if isinstance(session.opening, list):
        session.opening[step] = wall_ns()


def _late(session: Session) -> None:
    # Not the agent's fault alone: after a stall of this process every hello seems late. So: come again.
    session.close(CloseCode.SILENT, "no hello in time")
