"""Asks the node that holds an agent for the statistics of its link, which only that process knows.

The API calls it for one agent at a time, never for lists. The request is a doorbell and the answer stays in Redis for
some seconds, so it works from any node and costs nothing while nobody asks. It is not an error if the node does not
answer in time.
"""

from __future__ import annotations

import logging

import msgspec

from fairlead.bus.doorbell import LinkStatsRequested, LinkStatsWritten
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import AgentRow
from fairlead.hub.session import Session
from fairlead.routing.followers import Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.observability.link_stats import LinkStats, link_stats

logger = logging.getLogger(__name__)

TIMEOUT = 2.0
"""Seconds. An answer takes milliseconds, and more time would hardly help a node that is too busy to answer in this."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LinkStats).decode


class LinkQuery:
    def __init__(self, directory: Directory, inbox: Inbox, followers: Followers, membership: Membership) -> None:
        self._directory = directory
        self._inbox = inbox
        self._followers = followers
        self._membership = membership

    async def fetch(self, row: AgentRow, timeout: float = TIMEOUT) -> LinkStats | None:
        """The statistics of the link in `row`. None if its node has another link of the agent, or does not answer
        within `timeout` seconds."""
        with self._followers.follow(_topic(row.agent)) as follower:
            self._inbox.ring(row.lease, (LinkStatsRequested(row.agent, self._membership.lease),))
            if not await follower.wait(timeout):
                return None
            answer = await self._directory.read_link_stats(row.agent)
        stats = _decode(answer) if answer else None
        return stats if stats is not None and stats.sid == row.sid else None

    def answer_written(self, agent: str) -> None:
        """Wake those who wait for an answer, which a node has written to Redis."""
        self._followers.notify(_topic(agent))

    async def answer(self, session: Session, asker: str) -> None:
        """Write the statistics of this link to Redis, then ring the node that asked."""
        try:
            await self._directory.write_link_stats(session.agent, _encode(link_stats(session)))
        except BusUnavailable as e:
            logger.debug("the statistics of the link of %s could not be written: %s", session.agent, e)
            return
        self._inbox.ring(asker, (LinkStatsWritten(session.agent),))


def _topic(agent: str) -> str:
    return f"agent {agent}"
