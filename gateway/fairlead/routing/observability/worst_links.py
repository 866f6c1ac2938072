"""The worst links of the fleet: each node ranks its own, the one that was asked ranks the answers.

Called by the API, for people who look. The question goes as a doorbell to every node that is alive, the answers stand
in Redis for some seconds, a bounded number of links each: no list of all agents is ever made, and nothing is kept up
to date for a question that nobody asks. A node walks its links in slices between which it does its other work, and
answers all who ask within a second from one walk.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from dataclasses import dataclass

import msgspec

from fairlead.bus.doorbell import WorstLinksRequested, WorstLinksWritten
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import AgentRow
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.followers import Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.observability.link_stats import RANKS, LinkStats, link_stats, rank_score

logger = logging.getLogger(__name__)

MOST = 100
"""Links of one answer: more than fits a screen, and some 20 KB from each node."""
PATIENCE = 2.0
"""Seconds: an answer takes milliseconds, or some tens for a full node."""
SLICE = 500
"""Links that are looked at in one turn of the loop: under a millisecond."""
FRESH = 1.0
"""Seconds for which an answer serves all who ask."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[float, LinkStats]]).decode


@dataclass(frozen=True, slots=True)
class RankedLink:
    """One of the worst: its node, the link, and what stands in Redis of the agent, if it still does."""

    node: str
    link: LinkStats
    row: AgentRow | None


class WorstLinks:
    def __init__(
        self, directory: Directory, hub: Hub, inbox: Inbox, followers: Followers, membership: Membership
    ) -> None:
        self._directory = directory
        self._hub = hub
        self._inbox = inbox
        self._followers = followers
        self._membership = membership
        self._fresh: dict[str, float] = {}
        """Until when what this node has written down serves, by rank."""
        self._asking: dict[str, set[str]] = {}
        """Who waits for a walk that is under way, by rank."""

    async def worst(self, by: str, limit: int) -> tuple[list[RankedLink], list[str]]:
        """The worst links of the fleet, the worst first, and the nodes that did not answer in time."""
        now = self._membership.now()
        alive = [row for row in self._membership.table.rows() if row.alive(now)]
        answers = await asyncio.gather(*(self._ask(row.lease, by) for row in alive))
        missing = [row.node for row, answer in zip(alive, answers, strict=True) if answer is None]
        ranked = [
            (score, row.node, link) for row, answer in zip(alive, answers, strict=True) for score, link in answer or ()
        ]
        found = heapq.nlargest(limit, ranked, key=lambda one: one[0])
        rows = {row.agent: row for row in await self._directory.look_up_all([link.agent for _, _, link in found])}
        return [RankedLink(node, link, rows.get(link.agent)) for _, node, link in found], missing

    async def _ask(self, lease: str, by: str) -> list[tuple[float, LinkStats]] | None:
        with self._followers.follow(_topic(lease, by)) as told:
            self._inbox.ring(lease, (WorstLinksRequested(self._membership.lease, by),))
            if not await told.wait(PATIENCE):
                return None
            answer = await self._directory.read_worst_links(lease, by)
        return _decode(answer) if answer else None

    def told(self, lease: str, by: str) -> None:
        """The answer of that node stands in Redis."""
        self._followers.wake(_topic(lease, by))

    async def answer(self, asker: str, by: str) -> None:
        """Write down the worst links of this node, then ring whoever asked."""
        if by not in RANKS:
            return  # of a later version
        if (waiting := self._asking.get(by)) is not None:
            waiting.add(asker)
            return
        lease, loop = self._membership.lease, asyncio.get_running_loop()
        askers = {asker}
        if loop.time() >= self._fresh.get(by, 0.0):
            self._asking[by] = askers
            try:
                await self._directory.write_worst_links(lease, by, _encode(await self._walk(by)))
            except BusUnavailable as e:
                logger.debug("nobody could be told of the links ranked by %s: %s", by, e)
                return
            finally:
                del self._asking[by]
            self._fresh[by] = loop.time() + FRESH
        for one in askers:
            self._inbox.ring(one, (WorstLinksWritten(lease, by),))

    async def _walk(self, by: str) -> list[tuple[float, LinkStats]]:
        worst: list[tuple[float, Session]] = []
        sessions = list(self._hub)
        for start in range(0, len(sessions), SLICE):
            scored = [(rank_score(s, by), s) for s in sessions[start : start + SLICE] if s.ready]
            worst = heapq.nlargest(MOST, [*worst, *scored], key=lambda one: one[0])
            await asyncio.sleep(0)
        return [(score, link_stats(session)) for score, session in worst if session.ready]


def _topic(lease: str, by: str) -> str:
    return f"rank {lease} {by}"
