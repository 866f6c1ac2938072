"""Sends commands, and cancels, to the agents of this node.

Called when a doorbell announces a command, and with the commands that a new link finds open. What is sent is decided by
the fence on the command's record, which makes this session its owner first; a doorbell only says where to look. If
Redis cannot be reached, the delivery is repeated until the link is lost; then the next link delivers. Only a command
that was offered to this very link, by the step that accepted it, is sent as its doorbell brings it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from fairlead.bus.doorbell import CommandOffered
from fairlead.errors import BusUnavailable
from fairlead.fleet.command_record import Delivery, Settled
from fairlead.fleet.commands import BULK
from fairlead.fleet.schema import TargetState
from fairlead.hub.delivery_queue import DeliveryQueue
from fairlead.hub.session import Session
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.commands.completion import Completion
from fairlead.routing.contents.content_cache import ContentCache
from fairlead.routing.delivery.input_delivery import InputDelivery
from fairlead.routing.delivery.taken_offers import TakenOffers
from fairlead.routing.delivery.terminal_recorder import TerminalRecorder
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.timeouts import RING_AGAIN_MS, wait_for_redis
from fairlead.store.backlog import Priority
from fairlead.telemetry.command_timing import CommandOrigin, CommandTiming
from fairlead.telemetry.logs import ids
from fairlead.telemetry.tracing import wall_ns
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import CANCELLED, DEADLINE, Cancel, Cmd

logger = logging.getLogger(__name__)

METHODS: Final = 1_024
"""Names of methods that are shared."""


class CommandDelivery:
    def __init__(
        self,
        fleet: FleetStore,
        offers: TakenOffers,
        contents: ContentCache,
        completion: Completion,
        terminals: TerminalRecorder,
        telemetry: TelemetryRecorder,
        tasks: BackgroundTasks,
        timeout: float,
    ) -> None:
        """`timeout` is the number of seconds without reading after which an agent is too slow: as long as it may be
        silent."""
        self._methods: dict[str, str] = {}
        self._store = fleet.store
        self._records = fleet.records
        self._gate = fleet.gate
        self._deadlines = fleet.deadlines
        self.input = InputDelivery(fleet, contents, terminals, tasks, timeout)
        self._completion = completion
        self._terminals = terminals
        self._telemetry = telemetry
        self._offers = offers
        self._membership = offers.membership
        self._tasks = tasks
        self._timeout = timeout

    def command_queued(self, session: Session, command: str, rung_at: int, bulk: bool = False) -> None:
        """Handle a doorbell that announces a command for this session's agent, or before welcome its input or cancel,
        which are read together with the command. `rung_at` is when it was rung (ns, 0 if not known)."""
        if session.open and session.stream(command) is None:
            self.deliver(session, (command,), rung_at, bulk)

    def command_offered(self, session: Session | None, offer: CommandOffered) -> None:
        """Handle a doorbell that brings a command for this session's agent. It is sent at once if it was offered to
        this link and nothing speaks against it, otherwise as its record says."""
        command, valid = offer.command, self._offers.valid(offer)
        if not self._offers.take(command):
            return
        if session is None or not session.ready or session.gen != offer.gen:
            if valid:
                self._offers.give_back(offer.agent, command, offer.gen)
            elif session is not None:
                self.command_queued(session, command, offer.rung_at, offer.lane == BULK)
        elif session.stream(command) is None:
            if valid and session.sends_at_once and not self._gate.closed and not self._terminals.on:
                self._send_offered(session, offer)
            else:
                session.queue_delivery(command, offer.rung_at, offer.lane == BULK, offered=valid)
                self.deliver(session, ())

    def _send_offered(self, session: Session, offer: CommandOffered) -> None:
        left = offer.expires - self._membership.now()
        if left <= 0:
            self._offers.give_back(offer.agent, offer.command, offer.gen)  # so that it ends as what was never sent
            return
        method = self._shared(offer.method)  # many commands of a run have the same one, each of a doorbell of its own
        origin = CommandOrigin(method, offer.traceparent, offer.began, offer.created)
        found = Delivery(
            False, 0, 1, left, False, False, offer.retry, offer.payload, offer.lane, origin, offer.signature,
            offer.content,
        )  # fmt: skip
        timing = CommandTiming(offer.rung_at, wall_ns())
        timing.offered = True
        self._records.recent.sent(offer.command, session.agent, offer.gen, session.memory, found.attempt)
        try:
            self._send(session, offer.command, found, timing)
        except Exception:
            self._failed(session)

    def _shared(self, method: str) -> str:
        """The same name of a method for all commands that have it, as far as there are not too many names."""
        if len(self._methods) >= METHODS:
            return self._methods.get(method, method)
        return self._methods.setdefault(method, method)

    def link_closed(self, session: Session, interrupted: Mapping[str, CommandTiming]) -> None:
        """Have the commands count as sent that were offered to this link and not acknowledged on it. `interrupted` are
        those that were sent on it and have not ended."""
        for command, timing in interrupted.items():
            if timing.offered and not timing.acked:
                self._offers.note_sent(session.agent, command, session.gen)

    def deliver(self, session: Session, commands: Iterable[str], rung_at: int = 0, gives_way: bool = False) -> None:
        """Deliver `commands`, one after the other, as fast as the agent reads.

        Before welcome they only wait, and `deliver` is called again after it. `gives_way` says that commands for other
        agents come first, because these were open before the link was, or are of the lane `bulk`.
        """
        for command in commands:
            session.queue_delivery(command, rung_at, gives_way)
        if (queue := session.begin_delivery()) is not None:
            self._tasks.spawn(self._deliver_all(session, queue))

    async def _deliver_all(self, session: Session, queue: DeliveryQueue) -> None:
        try:
            while queue and session.ready:
                await session.wait_writable(self._timeout)
                if not session.ready:
                    break  # the agent reads too slowly: the rest is delivered on its next link
                command, timing = next(iter(queue.items()))
                try:
                    await self._deliver(session, command, timing)
                except BusUnavailable as e:
                    # The fence may have been executed: repeat it now, since the sweeper rings only after some seconds.
                    logger.debug("delivery of %s to %s is repeated: %s", command, session.agent, e)
                    await wait_for_redis(self._store, self._timeout)
                    continue
                queue.pop(command, None)
        except Exception:
            self._failed(session)
        finally:
            if not session.ready:
                for command, gen in queue.offered.items():
                    if command in queue:
                        self._offers.give_back(session.agent, command, gen)
            session.end_delivery(queue)

    def _failed(self, session: Session) -> None:
        about = ids(agent=session.agent, session=session.sid)
        logger.exception("delivering to %s failed: its link is closed", session.agent, extra=about)
        session.close(CloseCode.INTERNAL, "the gateway could not deliver a command")

    async def _deliver(self, session: Session, command: str, timing: CommandTiming) -> None:
        self._membership.check_alive("it must not deliver commands")
        await self._gate.wait_settled(command)
        priority = Priority.BULK if timing.gives_way else Priority.COMMANDS
        known = session.identity
        found = await self._records.fence(command, session.agent, known.gen, known.memory, priority)
        if isinstance(found, Settled):
            self.nothing_to_deliver(session.agent, command, found)
            return
        self._offers.take(command)  # its offer may come later
        if session.ready and (how := await self._terminals.begin(command, session.agent, found)) is not None:
            ended = await self._records.finish(command, session.agent, TargetState.FAILED, how)
            if ended.why == "ok":
                state, code = TargetState.FAILED.value, how.code
                self._completion.completed(command, session.agent, state, ended.followers, code, found.origin)
        elif session.ready:
            self._send(session, command, found, timing)

    def nothing_to_deliver(self, agent: str, command: str, found: Settled) -> None:
        """Handle a fence that found that the command is over, or that a newer link owns the agent."""
        if found.why == "ended":  # by this fence, just now
            if self._telemetry.tracing.on:
                self._tasks.spawn(self._complete_with_origin(agent, command, found))
            else:
                self._complete(agent, command, found, None)
        elif found.why == "offered":
            # The node that had the offer may be dead, and the sweeper comes rarely to what is not acknowledged.
            self._deadlines.schedule(command, agent, self._membership.now() + RING_AGAIN_MS)
        elif found.why != "stale":
            self._completion.forget(command, agent)

    def _complete(self, agent: str, command: str, found: Settled, origin: CommandOrigin | None) -> None:
        code = "outcome_unknown" if found.state == "failed" else ""
        self._completion.completed(command, agent, found.state, found.followers, code, origin)

    async def _complete_with_origin(self, agent: str, command: str, found: Settled) -> None:
        """Like `_complete`, with the origin of the command, by which its trace is found."""
        origin: CommandOrigin | None = None
        try:
            origin = await self._records.origin(command)
        except BusUnavailable as e:
            logger.debug("the end of %s has no span: %s", command, e)
        self._complete(agent, command, found, origin)

    def _send(self, session: Session, command: str, found: Delivery, timing: CommandTiming) -> None:
        if session.stream(command) is None:
            session.open_stream(command, found.next)
        if (stream := session.stream(command)) is not None:
            stream.input_source, stream.bulk = found.content, found.lane == BULK
        if found.running:
            self._telemetry.command_taken_over(session, command)
        else:
            traceparent = self._telemetry.command_sent(session, command, timing, found.origin, found.attempt)
            session.send(
                Cmd(
                    id=command, method=found.origin.method, payload=found.payload, deadline=found.left,
                    lane=found.lane, credit=session.window, attempt=found.attempt,  # type: ignore[arg-type]
                    traceparent=traceparent, sig=found.signature, retry=found.retry,  # type: ignore[arg-type]
                )
            )  # fmt: skip  # lane and retry were checked when the command was posted
        self.resume(session, command, found.cancelled, found.has_input)

    def resume(self, session: Session, command: str, cancelled: bool, has_input: bool) -> None:
        """Send the cancel and the input that Redis has for a command that the agent has, or that was just written."""
        stream = session.stream(command)
        if stream is not None:
            stream.agent_knows()
        if cancelled:
            self.cancel(session, command, CANCELLED)
        if has_input:
            self.input.feed(session, command)

    def cancel(self, session: Session, command: str, why: str) -> None:
        """Tell the agent to end the command, and grant the credit that it may need for that: otherwise its `end` could
        wait behind output that is no longer read."""
        over = why != CANCELLED
        credit = session.dismiss_stream(command) if over else session.released(command)
        if over and session.stop_timing(command) is not None and why == DEADLINE:
            self._telemetry.deadline_passed()
        session.send(Cancel(id=command, why=why))
        if credit is not None:
            session.send(credit)
