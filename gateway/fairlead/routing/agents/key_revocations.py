"""Which keys of agents were revoked, as this node last read them; closes the links that such a key has opened.

The node creates one and runs `run`, which asks every second. The API calls `revoke`. A key that was revoked stays so
after a node has started again, because Redis has it, and after Redis has lost its data, because every node writes back
what it knows. Only if Redis and all nodes lose it at once, a credential that has not expired opens links again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

from fairlead.errors import BusUnavailable, FairleadError, Unavailable
from fairlead.fleet.tokens.revoked_keys import KEPT_MS, KEYS_LIMIT, RevokedKey, RevokedKeys
from fairlead.hub.hub import Hub
from fairlead.hub.link_identity import KEY_CHARACTERS
from fairlead.telemetry.metrics import Metrics
from fairlead.wire.close_codes import CloseCode

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two questions. With the time of one request, a link is closed well within the promised 5 s."""
OVERLAP_MS: Final = 60_000
"""How much later a key may be stored than its time says, because nodes estimate the time of Redis."""


class KeyRevocations:
    """`now` is Redis TIME in ms."""

    def __init__(self, stored: RevokedKeys, hub: Hub, now: Callable[[], int]) -> None:
        self._stored = stored
        self._hub = hub
        self._now = now
        self._known: frozenset[RevokedKey] = frozenset()
        self._thumbprints: frozenset[str] = frozenset()
        self._closed = 0

    def watch(self, metrics: Metrics) -> None:
        """Have the metrics read what is counted here."""
        metrics.add_gauge(
            "fairlead_revoked_agent_keys",
            "Keys of agents that were revoked in the last 8 days",
            lambda: len(self._known),
        )
        metrics.add_counter(
            "fairlead_revoked_links_total", "Links closed because their agent's key was revoked", lambda: self._closed
        )

    def holds(self, thumbprint: str) -> bool:
        """Whether the key with this thumbprint was revoked."""
        return thumbprint in self._thumbprints

    async def require_room(self) -> None:
        """Raises Unavailable if as many keys were revoked lately as may be, and BusUnavailable."""
        if await self._stored.count(self._now() - KEPT_MS) >= KEYS_LIMIT:
            raise Unavailable(
                f"{KEYS_LIMIT} keys of agents were revoked in the last 8 days, the maximum: replace the issuer's "
                "key, which refuses all credentials"
            )

    async def revoke(self, agent: str, thumbprint: str) -> None:
        """Revoke a key: this node closes its link now, every other one within seconds. Raises BusUnavailable."""
        now = self._now()
        key = RevokedKey(now, thumbprint, agent)
        await self._stored.add((key,), now)
        self._learn(frozenset((key,)))

    async def run(self) -> None:
        """Follow the revocations. Never returns."""
        while True:
            try:
                await self.refresh()
            except BusUnavailable as e:
                logger.debug("the revoked keys cannot be read: %s", e.message)
            except FairleadError as e:
                # Somebody else wrote to the key: what is known stays in force, and the loop has to go on.
                logger.error("the revoked keys in Redis cannot be read: %s", e.message)
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))

    async def refresh(self) -> None:
        """Read what is new, or everything if Redis has more or fewer keys than this node. Raises BusUnavailable."""
        oldest = self._now() - KEPT_MS
        known = frozenset(key for key in self._known if key.at > oldest)
        newest = max((key.at for key in known), default=oldest)
        found = await self._stored.since(max(oldest, newest - OVERLAP_MS))
        if await self._stored.count(oldest) != len(known | found):
            found = await self._stored.since(oldest)
            if lost := known - found:
                logger.warning("Redis has lost %d revoked keys of agents: they are written again", len(lost))
                await self._stored.add(lost, self._now())
        if known != self._known:
            self._known = known
        self._learn(found)

    def _learn(self, found: frozenset[RevokedKey]) -> None:
        new = found - self._known
        self._known |= new
        self._thumbprints = frozenset(key.thumbprint for key in self._known)
        self._close(new)

    def _close(self, keys: Iterable[RevokedKey]) -> None:
        for _, thumbprint, agent in keys:
            # A claim may be under way for a newer link than the one that is there.
            for session in {self._hub.get(agent), self._hub.registering(agent)}:
                if session is not None and session.open and session.identity.key == thumbprint[:KEY_CHARACTERS]:
                    self._closed += 1
                    logger.warning("closed the link of agent %s: its key %s was revoked", agent, thumbprint)
                    session.close(CloseCode.REVOKED, CloseCode.REVOKED.meaning)
