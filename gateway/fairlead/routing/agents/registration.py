"""Registers an agent for its link: claims it in Redis, takes its open commands over, and sends welcome.

`LinkHandler` starts it with hello. If a claim cannot be made because Redis is away, it is repeated until it can: the
agent waits on its open link. If the link is lost during the claim, the lease is released, so that no agent seems online
on a link that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from fairlead.bus.doorbell import LinkSuperseded
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet.command_record import TakenOver
from fairlead.fleet.directory import NO_KEY, ProvedKey
from fairlead.fleet.directory_replies import Claimed, Overtaken
from fairlead.fleet.schema import AgentRow
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.identity.authenticated_agent import AuthenticatedAgent
from fairlead.identity.link_challenge import LinkChallenge, LinkProof
from fairlead.routing.agents.cloned_agents import ClonedAgents
from fairlead.routing.agents.lease_release import LeaseReleaser
from fairlead.routing.delivery.changed_facts import ChangedFacts
from fairlead.routing.delivery.takeover import Takeover
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.moves.certified_links import CertifiedLinks
from fairlead.routing.moves.expiring_links import ExpiringLinks
from fairlead.routing.observability.refused_links import RefusedLinks
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.timeouts import VALID_MS, wait_for_redis
from fairlead.telemetry.logs import ids
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Caps, Hello, Limits, Retry, Welcome
from fairlead.wire.retry import HANDED_OUT_MS, first_ceiling

logger = logging.getLogger(__name__)

CLAIMS_AT_ONCE = 128
"""The number of claims under way, which is some batches of the store. More of them would only wait there, and take
capacity from lists and comparisons, which share it with claims."""
TAKES_FACTS = Caps(facts=True)


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What welcome tells every agent; `bus_grace`, the seconds that an agent waits for its claim while Redis is away;
    and `revoke_cloned`, whether the key of an agent is revoked when two copies use it."""

    heartbeat_ms: int
    limits: Limits
    accept_rate: float
    bus_grace: float
    revoke_cloned: bool = False


class Registration:
    def __init__(
        self,
        fleet: FleetStore,
        hub: Hub,
        inbox: Inbox,
        takeover: Takeover,
        lease_releaser: LeaseReleaser,
        membership: Membership,
        telemetry: TelemetryRecorder,
        settings: LinkSettings,
    ) -> None:
        self._store = fleet.store
        self._directory = fleet.directory
        self._hub = hub
        self._inbox = inbox
        self._takeover = takeover
        self._lease_releaser = lease_releaser
        self._membership = membership
        self._telemetry = telemetry
        self._settings = settings
        self.refusals, self.expiring = RefusedLinks(), ExpiringLinks(membership.now)
        self.certified, self.changed_facts = CertifiedLinks(hub), ChangedFacts(fleet, membership.now)
        self._claims = asyncio.Semaphore(CLAIMS_AT_ONCE)
        self.cloned: ClonedAgents | None = None
        """Is told of agents whose key has two holders. The node sets it."""

    async def register(self, session: Session, hello: Hello) -> None:
        """Register the agent of a session, from its hello to its welcome. Returns early if the link closes
        meanwhile."""
        try:
            await self._register(session, hello)
        finally:
            self._hub.end_registration(session)
            if not session.ready and (current := self._hub.get(session.agent)) is not None:
                self._takeover.pass_on(session, current)

    async def _register(self, session: Session, hello: Hello) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        unsure = False  # true after a claim without an answer, which may have been executed or may be while it is valid
        while session.open:
            try:
                async with self._claims:
                    # A link may be lost while it waits: its claim could take the agent from its next process.
                    if session.open and await self._attempt(session, hello):
                        self._hub.accepted += 1
                        self._hub.opening.welcomed(session, loop.time())
                        self._telemetry.agent_registered(loop.time() - started)
                break
            except BusUnavailable as e:
                unsure = True
                left = self._settings.bus_grace - (loop.time() - started)
                if left <= 0:
                    session.close(CloseCode.BUS_AWAY, "the gateway has lost Redis: come back later")
                    break
                logger.debug("claim of %s: %s", session.agent, e)
                self._hub.opening.claim_paused(session)
                await wait_for_redis(self._store, left)
                self._hub.opening.claim_began(session, loop.time())
            except Exception:
                logger.exception("the claim of %s failed", session.agent, extra=ids(agent=session.agent))
                session.close(CloseCode.INTERNAL, "the gateway could not register this agent")
        self._hub.opening.discard(session)  # it may take seconds to close a link that will not be welcomed
        if not session.open and unsure:
            await asyncio.sleep(VALID_MS / 1000)
            self._lease_releaser.add(session, CloseCode.ABNORMAL, "the link was lost before its welcome")

    async def _attempt(self, session: Session, hello: Hello) -> bool:
        """Make one claim and do what follows from it. Returns False if this session does not become the agent's."""
        membership = self._membership
        membership.check_alive("it must not claim agents")
        if self._hub.draining:
            session.close(CloseCode.RESTART, "the node restarts")
            return False
        lease, known = membership.lease, session.identity
        self._hub.begin_registration(session)
        proof = self._hub.opening.proof(session)
        key = _proved_key(proof, hello)
        claimed = await self._directory.claim(
            session.agent, lease, known.boot, known.conn, known.sid, msgspec.json.encode(hello.facts),
            membership.valid_until(), known=membership.rebuilding and known.conn > 1, key=key,
            revoke_cloned=self._settings.revoke_cloned, journal=known.journal,
        )  # fmt: skip
        if isinstance(claimed, Overtaken):
            self._refuse(session, claimed, key, "" if proof is None else proof.agent)
            return False
        if claimed.notice:
            self._note_copy(session, claimed.notice, key)
        session.claimed(claimed.gen)
        if claimed.moved:
            self._note_move(session, claimed)
        self._telemetry.agent_claimed(session)
        if not session.open or not self._hub.add(session):
            newer = self._hub.get(session.agent)
            same = newer is None or newer.boot == session.boot
            session.close(CloseCode.SUPERSEDED if same else CloseCode.REPLACED, "superseded by a newer link")
            self._lease_releaser.add(session, CloseCode.ABNORMAL, "superseded by a newer link")
            return False
        self._evict_elsewhere(session, claimed)
        taken = await self._takeover.fence(session, claimed.open)
        if lease != membership.lease:
            raise BusUnavailable("this node joined the fleet again during the claim")
        if self._hub.draining:
            session.close_for_restart()
        if not session.open:
            return False
        self._welcome(session, hello, claimed, taken)
        return True

    def _refuse(self, session: Session, claimed: Overtaken, key: ProvedKey, proved: str) -> None:
        """Close a link whose claim was refused; `proved` is the id that the agent has proved. Raises BusUnavailable if
        the claim is to be made again."""
        if claimed.noticed:
            self._note_copy(session, "cloned", key, revoked=claimed.why == "cloned")
        match claimed.why:
            case "late":
                raise BusUnavailable("the claim came too late and was refused")
            case "key":
                self.refusals.note(session.agent, proved, "the id is bound to another key, or its key was revoked")
                session.close(
                    CloseCode.IDENTITY,
                    "this id is bound to another key, or its key was revoked: use that key, or another id",
                )
            case "cloned":
                session.close(CloseCode.REVOKED, "two copies of this agent used its key, so it was revoked")
            case "contested":
                session.close(CloseCode.CONTESTED, CloseCode.CONTESTED.meaning, claimed.wait_ms)
            case _:
                session.close(CloseCode.SUPERSEDED, "superseded by a newer attempt of the same process")

    def _note_copy(self, session: Session, notice: str, key: ProvedKey, *, revoked: bool = False) -> None:
        if self.cloned is None:
            return
        if notice == "cloned":
            self.cloned.found(session, key.thumbprint, revoked=revoked)
        else:
            self.cloned.outdated(session)

    def _note_move(self, session: Session, claimed: Claimed) -> None:
        """Record that a rebalance has moved the agent, either to this node or before that."""
        returned = claimed.landed and claimed.previous == self._membership.lease
        left = "" if claimed.landed else claimed.previous
        self._hub.recent_moves.note(session.agent, claimed.moved, claimed.now, returned=returned, left=left)

    def _evict_elsewhere(self, session: Session, claimed: Claimed) -> None:
        """Ring the node of the agent's previous link, if that is another one, to close the link."""
        if claimed.previous and claimed.previous != self._membership.lease:
            code = CloseCode.SUPERSEDED if claimed.previous_boot == session.boot else CloseCode.REPLACED
            self._inbox.ring(claimed.previous, (LinkSuperseded(session.agent, claimed.previous_gen, code),))

    def _welcome(self, session: Session, hello: Hello, claimed: Claimed, taken: dict[str, TakenOver]) -> None:
        settings = self._settings
        resumed = claimed.previous_boot == session.boot and hello.conn > 1
        session.welcome(
            Welcome(
                sid=session.sid,
                gen=claimed.gen,
                now=claimed.now,
                hb=settings.heartbeat_ms,
                resumed=resumed,
                have={command: found.next for command, found in taken.items() if not found.queued},
                limits=settings.limits,
                retry=Retry(first_ceiling(self._hub.links, settings.accept_rate), cap=HANDED_OUT_MS),
                caps=TAKES_FACTS,
            )
        )
        proof = self._hub.opening.proof(session)
        if isinstance(proof, AuthenticatedAgent):
            self.expiring.add(session, proof)
        if proof is not None and proof.origin is not None:
            self.certified.add(session, proof.origin)
        self._telemetry.link_welcomed(session, resumed)
        self._takeover.resume(session, taken, hello.have)

    def disconnect(self, row: AgentRow) -> None:
        """Ring the node that has the agent's link, to close it. The agent connects again."""
        self._inbox.ring(row.lease, (LinkSuperseded(row.agent, row.gen, CloseCode.DISCONNECTED),))


def _proved_key(proof: LinkProof | None, hello: Hello) -> ProvedKey:
    """What a claim binds the id to; nothing for the shared token."""
    if proof is None:
        return NO_KEY
    labels = msgspec.json.encode(proof.labels) if proof.labels else b""
    # Nobody but an agent with a credential stores its session and signs it.
    session = hello.resume.sid if isinstance(proof, LinkChallenge) and hello.resume is not None else ""
    return ProvedKey(proof.thumbprint, labels, proof.issued, proof.certified, session)
