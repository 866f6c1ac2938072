"""Asks the node that holds an agent how its link is doing: what only that process knows.

Called by the API for one agent at a time, never for lists. The question goes as a doorbell, the answer stands in Redis
for some seconds, so it works from any node and costs nothing until somebody asks. A node that does not answer in time
is itself part of the answer.
"""

from __future__ import annotations

import logging

import msgspec

from fairlead.bus.doorbell import LinkStatsRequested, LinkStatsWritten
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import AgentRow
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.followers import Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.observability.link_stats import LinkStats, link_stats

logger = logging.getLogger(__name__)

PATIENCE = 2.0
"""Seconds: an answer takes milliseconds; a node that is that busy will not say more by being waited for."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LinkStats).decode


class LinkQuery:
    def __init__(
        self, directory: Directory, hub: Hub, inbox: Inbox, followers: Followers, membership: Membership
    ) -> None:
        self._directory = directory
        self._hub = hub
        self._inbox = inbox
        self._followers = followers
        self._membership = membership

    async def ask(self, row: AgentRow, patience: float = PATIENCE) -> LinkStats | None:
        """The link of an agent that is online; None when its node did not answer within `patience` seconds, or has
        another link."""
        with self._followers.follow(_topic(row.agent)) as told:
            self._inbox.ring(row.lease, (LinkStatsRequested(row.agent, self._membership.lease),))
            if not await told.wait(patience):
                return None
            answer = await self._directory.read_link_stats(row.agent)
        state = _decode(answer) if answer else None
        return state if state is not None and state.sid == row.sid else None

    def told(self, agent: str) -> None:
        """The answer stands in Redis."""
        self._followers.wake(_topic(agent))

    async def answer(self, session: Session, asker: str) -> None:
        """Write down how the link is doing, then ring whoever asked."""
        try:
            await self._directory.write_link_stats(session.agent, _encode(link_stats(session)))
        except BusUnavailable as e:
            logger.debug("nobody could be told of %s: %s", session.agent, e)
            return
        self._inbox.ring(asker, (LinkStatsWritten(session.agent),))


def _topic(agent: str) -> str:
    return f"agent {agent}"
