"""Handles the doorbells of this node: the one place that knows what each kind asks for.

The node passes `handle` to its inbox. A doorbell for an agent that is not here is dropped: whoever rang it looks again,
after seconds. While an agent is claimed for a new link here, what concerns its commands waits for the welcome, because
Redis may name this node before the answer to the claim is here. Handling a doorbell twice does nothing the second time.
"""

from __future__ import annotations

from fairlead.bus.doorbell import (
    Canary,
    CancelRequested,
    CommandOffered,
    CommandQueued,
    Doorbell,
    InputAdded,
    LinkStatsRequested,
    LinkStatsWritten,
    LinkSuperseded,
    MembershipChanged,
    ResultsAdded,
    ResultsConsumed,
    ResultsStored,
    TargetEnded,
    WorstLinksRequested,
    WorstLinksWritten,
)
from fairlead.fleet.commands import BULK
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.delivery.bulk_offers import BulkOffers
from fairlead.routing.delivery.command_delivery import CommandDelivery
from fairlead.routing.delivery.recording.recorder import Recorder
from fairlead.routing.followers import Followers
from fairlead.routing.membership.heartbeat import Heartbeat
from fairlead.routing.observability.link_query import LinkQuery
from fairlead.routing.observability.worst_links import WorstLinks
from fairlead.wire.messages import CANCELLED

ID_LIMIT = 64
"""Characters of a command's id, and of the reason for which it is cancelled, as the link protocol limits them."""


class DoorbellHandler:
    def __init__(
        self,
        hub: Hub,
        delivery: CommandDelivery,
        recorder: Recorder,
        followers: Followers,
        link_query: LinkQuery,
        worst_links: WorstLinks,
        heartbeat: Heartbeat,
        tasks: BackgroundTasks,
    ) -> None:
        self._hub = hub
        self._delivery = delivery
        self._recorder = recorder
        self._followers = followers
        self._link_query = link_query
        self._worst_links = worst_links
        self._heartbeat = heartbeat
        self._tasks = tasks
        self._bulk = BulkOffers(self._offered)

    def handle(self, doorbells: list[Doorbell]) -> None:
        if MembershipChanged() in doorbells:  # once, however many there are
            self._tasks.spawn(self._heartbeat.refresh_table())
        for doorbell in doorbells:
            match doorbell:
                case CommandQueued(agent, command, rung_at, bulk):
                    # The newer link first: what an older one is sent from the claim on would be lost with it.
                    session = self._hub.registering(agent) or self._hub.get(agent)
                    if session is not None:
                        self._delivery.command_queued(session, command, rung_at, bulk)
                case CommandOffered():
                    (self._bulk.add if doorbell.lane == BULK else self._offered)(doorbell)
                case ResultsAdded(command):
                    self._followers.notify(command)
                case ResultsStored(command, added):
                    self._followers.tell_results(command, added)
                case TargetEnded():
                    self._followers.tell_end(doorbell)
                case InputAdded(agent, command):
                    if (session := self._ready(agent)) is not None:
                        if session.stream(command) is None:
                            self._delivery.command_queued(session, command, 0)  # its doorbell may come later
                        self._delivery.input.feed(session, command)
                    self._keep_for_welcome(agent, command)
                case CancelRequested(agent, command, why):
                    # Whoever writes to Redis may ring for anything, and an agent that gets an invalid id ends its link.
                    valid = 0 < len(command) <= ID_LIMIT and 0 < len(why) <= ID_LIMIT
                    if valid and (session := self._ready(agent)) is not None:
                        if why == CANCELLED and session.stream(command) is None:
                            self._delivery.command_queued(session, command, 0)  # its doorbell may come later
                        self._delivery.cancel(session, command, why)
                    self._keep_for_welcome(agent, command)
                case LinkSuperseded(agent, gen, close_code):
                    self._hub.evict(agent, gen, close_code)
                case ResultsConsumed(agent, command):
                    if (session := self._ready(agent)) is not None:
                        self._tasks.spawn(self._recorder.grant_withheld(session, command))
                case LinkStatsRequested(agent, asker):
                    if (session := self._ready(agent)) is not None:
                        self._tasks.spawn(self._link_query.answer(session, asker))
                case LinkStatsWritten(agent):
                    self._link_query.answer_written(agent)
                case WorstLinksRequested(asker, by):
                    self._tasks.spawn(self._worst_links.answer(asker, by))
                case WorstLinksWritten(lease, by):
                    self._worst_links.answer_written(lease, by)
                case MembershipChanged() | Canary():
                    pass  # handled above, and by the inbox

    def _offered(self, offer: CommandOffered) -> None:
        # On an older link it would be lost with it.
        older = self._hub.registering(offer.agent) is not None
        self._delivery.command_offered(None if older else self._hub.get(offer.agent), offer)

    def _keep_for_welcome(self, agent: str, command: str) -> None:
        """Queue a command whose input or cancel the agent's newer link may have missed when it took over."""
        session = self._hub.registering(agent)
        if session is not None:
            self._delivery.command_queued(session, command, 0)

    def _ready(self, agent: str) -> Session | None:
        session = self._hub.get(agent)
        return session if session is not None and session.ready else None
