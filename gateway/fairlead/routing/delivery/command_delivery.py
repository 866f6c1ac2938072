"""The agent's side of a command: from a doorbell to the link.

Called with the doorbells that this node hears. A doorbell only says where to look; what is sent is decided by the
fence on the command's record, which makes this session its owner first. A ring for an agent that is not here, or
a failure to reach Redis, is dropped: the keeper rings again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fairlead.bus.doorbell import (
    Canary,
    CancelRequested,
    CommandQueued,
    Doorbell,
    InputAdded,
    LinkStatsRequested,
    LinkStatsWritten,
    LinkSuperseded,
    MembershipChanged,
    ResultsAdded,
    ResultsConsumed,
    WorstLinksRequested,
    WorstLinksWritten,
)
from fairlead.errors import BusUnavailable
from fairlead.fleet.command_record import Delivery, Settled
from fairlead.fleet.commands import Commands
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.commands.completion import Completion
from fairlead.routing.delivery.recorder import Recorder
from fairlead.routing.followers import Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.observability.link_query import LinkQuery
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.observability.worst_links import WorstLinks
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.backlog import Priority
from fairlead.store.pipeliner import Pipeliner
from fairlead.telemetry.command_timing import CommandOrigin, CommandTiming
from fairlead.telemetry.logs import ids
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import wall_ns
from fairlead.wire import messages
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import CANCELLED, Chunk, Cmd, End

logger = logging.getLogger(__name__)


class CommandDelivery:
    def __init__(
        self,
        store: Pipeliner,
        hub: Hub,
        records: Commands,
        recorder: Recorder,
        link_query: LinkQuery,
        worst_links: WorstLinks,
        completion: Completion,
        telemetry: TelemetryRecorder,
        followers: Followers,
        membership: Membership,
        tasks: BackgroundTasks,
        metrics: Metrics,
        patience: float,
    ) -> None:
        self._store = store
        self._hub = hub
        self._records = records
        self._recorder = recorder
        self._link_query = link_query
        self._worst_links = worst_links
        self._completion = completion
        self._telemetry = telemetry
        self._followers = followers
        self._membership = membership
        self._tasks = tasks
        self._metrics = metrics
        self._patience = patience
        """Seconds without reading after which an agent is too slow: as long as it may be silent."""

    def hear(self, doorbells: list[Doorbell]) -> None:
        """The inbox's callback. Hearing a doorbell twice does nothing the second time."""
        for doorbell in doorbells:
            match doorbell:
                case CommandQueued(agent, command, at):
                    self._rung(agent, command, at)
                case ResultsAdded(command):
                    self._followers.wake(command)
                case InputAdded(agent, command):
                    session = self._hub.get(agent)
                    if session is not None and session.ready:
                        self.feed(session, command)
                case CancelRequested(agent, command, why):
                    session = self._hub.get(agent)
                    if session is not None and session.ready:
                        self._cancel(session, command, why)
                case LinkSuperseded(agent, gen, code):
                    self._hub.evict(agent, gen, code)
                case ResultsConsumed(agent, command):
                    session = self._hub.get(agent)
                    if session is not None and session.ready:
                        self._tasks.spawn(self._recorder.make_room(session, command))
                case LinkStatsRequested(agent, asker):
                    session = self._hub.get(agent)
                    if session is not None and session.ready:
                        self._tasks.spawn(self._link_query.answer(session, asker))
                case LinkStatsWritten(agent):
                    self._link_query.told(agent)
                case WorstLinksRequested(asker, by):
                    self._tasks.spawn(self._worst_links.answer(asker, by))
                case WorstLinksWritten(lease, by):
                    self._worst_links.told(lease, by)
                case MembershipChanged() | Canary():
                    pass  # for the node and for the inbox

    def _rung(self, agent: str, command: str, at: int) -> None:
        session = self._hub.get(agent)
        if session is not None and session.open and session.link.stream(command) is None:
            self.deliver(session, (command,), at)

    def deliver(self, session: Session, commands: Iterable[str], rung: int = 0, waited: bool = False) -> None:
        """See to it that `commands` are delivered, one after the other, as fast as the agent reads.

        Before welcome they only wait; `deliver` is then called again. `rung`: when the doorbell was. `waited`: they
        were there before the link, so that they give way to commands that were just posted.
        """
        for command in commands:
            if session.rung is None:
                session.rung = {}
            if command not in session.rung:
                session.rung[command] = timing = CommandTiming(rung, wall_ns())
                timing.waited = waited
        if session.rung and session.ready and not session.delivering:
            session.delivering = True
            self._tasks.spawn(self._deliver_all(session))

    async def _deliver_all(self, session: Session) -> None:
        try:
            while session.rung and session.ready:
                await session.writable(self._patience)
                if not session.ready:
                    break  # too slow: what was not written is delivered on the next link
                command, timing = next(iter(session.rung.items()))
                try:
                    await self._deliver(session, command, timing)
                except BusUnavailable as e:
                    # The fence may have been executed, and the keeper does not ring for what counts as sent: so again.
                    logger.debug("delivery of %s to %s is tried again: %s", command, session.agent, e)
                    await wait_for_redis(self._store, self._patience)
                    continue
                session.rung.pop(command, None)
        except Exception:
            about = ids(agent=session.agent, session=session.sid)
            logger.exception("deliveries to %s failed; its link is closed", session.agent, extra=about)
            session.close(CloseCode.INTERNAL, "the gateway could not deliver a command")
        finally:
            session.delivering = False
            session.rung = session.rung or None

    async def _deliver(self, session: Session, command: str, timing: CommandTiming) -> None:
        if not self._membership.alive:
            raise BusUnavailable("this node has no good beat: it may not deliver")
        priority = Priority.BACKGROUND if timing.waited else Priority.COMMANDS
        found = await self._records.fence(command, session.agent, session.gen, session.memory, priority)
        if isinstance(found, Settled):
            self.settled(session.agent, command, found)
        elif session.ready:
            self._send(session, command, found, timing)

    def settled(self, agent: str, command: str, found: Settled) -> None:
        """The fence found nothing to deliver."""
        if found.why == "ended":
            if self._telemetry.tracing.on:
                self._tasks.spawn(self._told(agent, command, found))
            else:
                self._over(agent, command, found, None)
        elif found.why != "stale":
            self._completion.forget(command, agent)

    def _over(self, agent: str, command: str, found: Settled, origin: CommandOrigin | None) -> None:
        code = "outcome_unknown" if found.state == "failed" else ""
        self._completion.over(command, agent, found.state, found.followers, code, origin)

    async def _told(self, agent: str, command: str, found: Settled) -> None:
        """`_over`, with what the command's trace is to be found by."""
        origin: CommandOrigin | None = None
        try:
            origin = await self._records.origin(command)
        except BusUnavailable as e:
            logger.debug("the end of %s has no span: %s", command, e)
        self._over(agent, command, found, origin)

    def _send(self, session: Session, command: str, found: Delivery, timing: CommandTiming) -> None:
        if session.link.stream(command) is None:
            session.begin(command, found.next)
        if found.running:
            self._telemetry.taken_up(session, command)
        else:
            self._metrics.delivered.inc()
            traceparent = self._telemetry.send(session, command, timing, found.origin, found.attempt)
            session.send(
                Cmd(
                    id=command, method=found.origin.method, payload=found.payload, deadline=found.left,
                    lane=found.lane, credit=session.link.window, attempt=found.attempt,  # type: ignore[arg-type]
                    traceparent=traceparent, retry=found.retry,  # type: ignore[arg-type]
                )
            )  # fmt: skip  # lane and retry were checked when the command was posted
        self.carry_on(session, command, found.cancelled, found.has_input)

    def carry_on(self, session: Session, command: str, cancelled: bool, has_input: bool) -> None:
        """The agent has the command, or it was just written: what stands in the store for it is sent."""
        stream = session.link.stream(command)
        if stream is not None:
            stream.known = True
        if cancelled:
            self._cancel(session, command, CANCELLED)
        if has_input:
            self.feed(session, command)

    def _cancel(self, session: Session, command: str, why: str) -> None:
        """Tell the agent to end the command, and give it the credit that it may need for that: its `end` would else
        wait behind output that nobody reads any more."""
        over = why != CANCELLED
        credit = session.dismiss(command) if over else session.link.released(command)
        if over:
            session.timed(command)
        session.send(messages.Cancel(id=command, why=why))
        if credit is not None:
            session.send(credit)

    def granted(self, session: Session, command: str) -> None:
        """The agent has consumed input: what is behind it may go, and more may be sent."""
        stream = session.link.stream(command)
        if stream is None:
            return
        if stream.input_consumed > stream.input_dropped:
            stream.input_dropped = stream.input_consumed
            self._records.consume_input(command, stream.input_consumed)
        self.feed(session, command)

    def feed(self, session: Session, command: str) -> None:
        """Send what input there is, as far as the agent's credit goes."""
        stream = session.link.stream(command)
        if stream is None or stream.input_ended or not stream.known:
            return
        stream.input_news = True
        if not stream.feeding:
            stream.feeding = True
            self._tasks.spawn(self._feed(session, command))

    async def _feed(self, session: Session, command: str) -> None:
        stream = session.link.stream(command)
        if stream is None:
            return
        try:
            while session.ready and stream.input_room > 0 and not stream.input_ended and stream.input_news:
                await session.writable(self._patience)
                stream.input_news = False
                try:
                    chunks = await self._records.read_input(command, stream.input_next)
                except BusUnavailable as e:
                    logger.debug("input of %s waits for Redis: %s", command, e)
                    stream.input_news = True
                    await wait_for_redis(self._store, self._patience)
                    continue
                for payload, end in chunks:
                    if len(payload) > stream.input_room:
                        return
                    stream.input_news = True  # there may be more behind what was read
                    if end:
                        stream.input_ended = True
                        session.send(End(id=command, total=stream.input_next))
                        return
                    session.send(Chunk(id=command, n=stream.input_next, kind="stdin", payload=payload))
                    stream.fed(len(payload))
        finally:
            stream.feeding = False
