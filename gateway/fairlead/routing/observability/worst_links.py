"""Finds the worst links of a tenant: each node ranks its own links, and the node that was asked merges the answers.

The API calls it for people who look for a problem. The request is a doorbell to every live node; the answers, of a
bounded number of links each, stay in Redis for some seconds. No list of all agents is ever made, and nothing is kept up
to date while nobody asks. A node goes through its links in slices, between which it does its other work, and one pass
answers all who ask within a second.
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
from fairlead.routing.observability.link_stats import MEASURES, LinkStats, link_stats, score
from fairlead.tenant import tenant_of

logger = logging.getLogger(__name__)

MAX_LINKS = 100
"""Links of one answer: more than a screen shows, and some 20 KB from each node."""
TIMEOUT = 2.0
"""Seconds. An answer takes milliseconds, or some tens of them on a full node."""
SLICE = 500
"""Links that are scored in one turn of the event loop: less than a millisecond."""
REUSE = 1.0
"""Seconds for which one answer serves all who ask."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[float, LinkStats]]).decode


@dataclass(frozen=True, slots=True)
class WorstLink:
    """One of the worst links: its node, its statistics, and the agent's row in Redis if there still is one."""

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
        self._fresh_until: dict[str, float] = {}
        """The event loop's time until which the last answer of this node is reused, by measure and tenant."""
        self._askers: dict[str, set[str]] = {}
        """The leases that wait for a pass that is under way, by measure and tenant."""

    async def find(self, tenant: str, by: str, limit: int) -> tuple[list[WorstLink], list[str]]:
        """The worst links of a tenant, the worst one first, and the nodes that did not answer in time."""
        now, measure = self._membership.now(), f"{by} {tenant}" if tenant else by
        alive = [row for row in self._membership.table.rows() if row.alive(now)]
        answers = await asyncio.gather(*(self._ask(row.lease, measure) for row in alive))
        missing = [row.node for row, answer in zip(alive, answers, strict=True) if answer is None]
        ranked = [
            (value, row.node, link) for row, answer in zip(alive, answers, strict=True) for value, link in answer or ()
        ]
        found = heapq.nlargest(limit, ranked, key=lambda one: one[0])
        rows = {row.agent: row for row in await self._directory.look_up_all([link.agent for _, _, link in found])}
        return [WorstLink(node, link, rows.get(link.agent)) for _, node, link in found], missing

    async def _ask(self, lease: str, measure: str) -> list[tuple[float, LinkStats]] | None:
        with self._followers.follow(_topic(lease, measure)) as follower:
            self._inbox.ring(lease, (WorstLinksRequested(self._membership.lease, measure),))
            if not await follower.wait(TIMEOUT):
                return None
            answer = await self._directory.read_worst_links(lease, measure)
        return _decode(answer) if answer else None

    def answer_written(self, lease: str, measure: str) -> None:
        """Wake those who wait for an answer, which a node has written to Redis."""
        self._followers.notify(_topic(lease, measure))

    async def answer(self, asker: str, measure: str) -> None:
        """Write the worst links of this node to Redis, then ring everybody who asked."""
        if measure.partition(" ")[0] not in MEASURES:
            return  # a measure of a newer version
        if (askers := self._askers.get(measure)) is not None:
            askers.add(asker)
            return
        lease, loop = self._membership.lease, asyncio.get_running_loop()
        askers = {asker}
        if loop.time() >= self._fresh_until.get(measure, 0.0):
            self._askers[measure] = askers
            try:
                await self._directory.write_worst_links(lease, measure, _encode(await self._rank(measure)))
            except BusUnavailable as e:
                logger.debug("the worst links by %s could not be written: %s", measure, e)
                return
            finally:
                del self._askers[measure]
            self._fresh_until[measure] = loop.time() + REUSE
        for one in askers:
            self._inbox.ring(one, (WorstLinksWritten(lease, measure),))

    async def _rank(self, measure: str) -> list[tuple[float, LinkStats]]:
        by, _, tenant = measure.partition(" ")
        worst: list[tuple[float, Session]] = []
        sessions = [session for session in self._hub if tenant_of(session.agent) == tenant]
        for start in range(0, len(sessions), SLICE):
            scored = [(score(s, by), s) for s in sessions[start : start + SLICE] if s.ready]
            worst = heapq.nlargest(MAX_LINKS, [*worst, *scored], key=lambda one: one[0])
            await asyncio.sleep(0)
        return [(value, link_stats(session)) for value, session in worst if session.ready]


def _topic(lease: str, measure: str) -> str:
    return f"worst links of {lease} by {measure}"
