"""Handles what happens on the links of this node: hello goes to registration, messages to the recorder, the end to the
lease releaser.

This is the hub's `SessionHandler`. It is called on the event loop and waits for nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

import msgspec

from fairlead.carrier.timer_wheel import TimeoutQueue
from fairlead.errors import InvalidRequest, Unauthorized
from fairlead.hub.hub import Hub
from fairlead.hub.link_identity import unpack_facts
from fairlead.hub.session import Session
from fairlead.identity.link_challenge import LinkProof
from fairlead.routing.agents.lease_release import LeaseReleaser
from fairlead.routing.agents.registration import Registration
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.delivery.command_delivery import CommandDelivery
from fairlead.routing.delivery.recording.recorder import Recorder
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.tenant import qualified, tenant_of
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.ids import check_agent_id
from fairlead.wire.messages import FACT_COUNT, FACTS_LIMIT, Hello


class LinkHandler:
    def __init__(
        self,
        hub: Hub,
        hello_deadline: TimeoutQueue,
        registration: Registration,
        recorder: Recorder,
        delivery: CommandDelivery,
        lease_releaser: LeaseReleaser,
        telemetry: TelemetryRecorder,
        tasks: BackgroundTasks,
    ) -> None:
        """`hello_deadline` has the timeouts of the sessions that have not said hello yet."""
        self.message_counters = telemetry.message_counters
        self.totals = hub.totals
        self._hub = hub
        self._hello_deadline = hello_deadline
        self._registration = registration
        self._recorder = recorder
        self._delivery = delivery
        self._lease_releaser = lease_releaser
        self._telemetry = telemetry
        self._tasks = tasks

    def link_accepted(self, session: Session, address: str, proof: LinkProof | None) -> None:
        """A link from this address is accepted, and its connection is about to be open. `proof` is what its hello is
        checked against, unless it was opened with the shared token."""
        self._hub.opening.add(session, address, proof)
        self._hello_deadline.add(session, self._close_late)

    def link_opened(self, session: Session) -> None:
        self._hub.links += 1
        self._telemetry.link_opened(session)

    def hello_received(self, session: Session, hello: Hello) -> None:
        self._hello_deadline.discard(session)
        self._telemetry.hello_received(session)
        try:
            check_agent_id(hello.agent)
        except InvalidRequest as e:
            session.close(CloseCode.PROTOCOL, e.message)
            return
        proof = self._hub.opening.proof(session)
        if proof is not None:
            try:
                proof.check(hello.agent, hello.proof, hello.resume.sid if hello.resume is not None else "")
            except Unauthorized as e:
                self._registration.refusals.note(hello.agent, proof.agent, e.message)
                session.close(CloseCode.IDENTITY, e.message)
                return
        # Only the credential says of which tenant an agent is. One with the shared token is of the default tenant.
        thumbprint, issuer = ("", "") if proof is None else (proof.thumbprint, proof.issuer)
        agent = qualified("" if proof is None else tenant_of(proof.agent), hello.agent)
        session.identify(agent, hello, secrets.token_bytes(8), thumbprint, issuer)
        if not _within_limits(session, hello.facts):
            return
        self._hub.opening.claim_began(session, asyncio.get_running_loop().time())
        self._tasks.spawn(self._registration.register(session, hello))

    def messages_pending(self, session: Session) -> None:
        self._recorder.record(session)

    def input_credit_received(self, session: Session, command: str) -> None:
        self._delivery.input.credit_received(session, command)

    def facts_changed(self, session: Session, changes: Mapping[str, str | None]) -> None:
        identity = session.identity
        before = identity.facts
        told: dict[str, str | None] = {**unpack_facts(identity.packed_facts), **changes}
        known = {key: value for key, value in told.items() if value is not None}
        if _within_limits(session, known):
            session.keep_facts(known)
            self._registration.changed_facts.add(session, before)

    def rtt_reported(self, session: Session, rtt_ms: float) -> None:
        self._telemetry.rtt_reported(rtt_ms)

    def link_closed(self, session: Session, code: int, reason: str, by_gateway: bool) -> None:
        self._hub.links -= 1
        self._hub.opening.discard(session)
        self._hello_deadline.discard(session)
        self._registration.expiring.discard(session)
        self._registration.certified.discard(session)
        now = asyncio.get_running_loop().time()
        interrupted = self._telemetry.link_closed(session, now, code, reason, by_gateway)
        if session.gen:
            self._delivery.link_closed(session, interrupted)
            self._hub.remove(session)
            if code == CloseCode.GOING_AWAY:
                self._hub.left += 1
            self._lease_releaser.add(session, code, reason)

    def _close_late(self, session: Session) -> None:
        # It may not be the agent's fault: after a pause of this process every hello seems late. The code lets it
        # return.
        session.close(CloseCode.SILENT, "no hello in time")
        self._hub.opening.discard(session)  # a connection that is lost before it is open is not reported as closed


def _within_limits(session: Session, facts: Mapping[str, str]) -> bool:
    """Whether these facts may be kept. Otherwise the link is closed."""
    if len(facts) > FACT_COUNT:
        session.close(CloseCode.PROTOCOL, f"{len(facts)} facts exceed max {FACT_COUNT}: send fewer")
    elif facts and (size := len(msgspec.json.encode(facts))) > FACTS_LIMIT:
        session.close(
            CloseCode.PROTOCOL, f"facts of {size} bytes as JSON exceed max {FACTS_LIMIT}: send fewer or shorter"
        )
    else:
        return True
    return False
