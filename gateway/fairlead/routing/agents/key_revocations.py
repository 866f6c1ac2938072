"""Which keys of agents were revoked, as this node last read them; closes the links that such a key has opened, and
those whose credential a refused key of an issuer has signed.

The node creates one and runs `run`, which asks every second. The API calls `revoke`. A key that was revoked stays so
after a node has started again, because Redis has it, and after Redis has lost its data, because every node writes back
what it knows. Only if Redis and all nodes lose it at once, a credential that has not expired opens links again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Iterable
from typing import Final

from fairlead.errors import BusUnavailable, FairleadError, Unavailable
from fairlead.fleet.tokens.revoked_keys import KEPT_MS, KEYS_LIMIT, RevokedKey, RevokedKeys
from fairlead.hub.hub import Hub
from fairlead.hub.link_identity import ISSUER_CHARACTERS, KEY_CHARACTERS
from fairlead.hub.session import Session
from fairlead.repeated_lines import RepeatedLines
from fairlead.telemetry.metrics import Metrics
from fairlead.tenant import tenant_of
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.retry import HANDED_OUT_MS

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two questions. With the time of one request, a link is closed well within the promised 5 s."""
SLICE: Final = 1_000
"""Links that are looked at in one turn of the event loop: half a millisecond."""
TENANT_LEAST: Final = 200
"""Revoked keys that each tenant may have, however many tenants share those of the fleet."""
OVERLAP_MS: Final = 60_000
"""How much later a key may be stored than its time says, because nodes estimate the time of Redis."""


class KeyRevocations:
    """`now` is Redis TIME in ms, and `tenants` says how many there are."""

    def __init__(
        self, stored: RevokedKeys, hub: Hub, now: Callable[[], int], tenants: Callable[[], int] = lambda: 1
    ) -> None:
        self._stored = stored
        self._hub = hub
        self._now = now
        self._tenants = tenants
        self._errors = RepeatedLines()
        self._known: frozenset[RevokedKey] = frozenset()
        self._times: dict[str, int] = {}
        self._oldest = math.inf
        """When the first of them was revoked (ms)."""
        self._read_at = 0
        """When Redis was last asked (ms): what was stored since then is not much older."""
        self._closed = 0

    def watch(self, metrics: Metrics) -> None:
        """Have the metrics read what is counted here."""
        metrics.add_gauge(
            "fairlead_revoked_agent_keys",
            "Keys of agents that were revoked in the last 8 days",
            lambda: len(self._known),
        )
        metrics.add_counter(
            "fairlead_revoked_links_total", "Links closed because a key was revoked or refused", lambda: self._closed
        )

    def holds(self, thumbprint: str) -> bool:
        """Whether the key with this thumbprint was revoked."""
        return thumbprint in self._times

    def revoked_at(self, thumbprint: str) -> int:
        """When the key with this thumbprint was revoked last (ms); 0 if it was not."""
        return self._times.get(thumbprint, 0)

    async def require_room(self, tenant: str, keys: int = 1, share: float = 1.0) -> None:
        """Raises Unavailable if fewer than `keys` more may be revoked, of all that there are or within this `share` of
        those of the tenant, and BusUnavailable."""
        own = max(TENANT_LEAST, KEYS_LIMIT // max(1, self._tenants())) * share
        if sum(tenant_of(key.agent) == tenant for key in self._known) + keys > own:
            raise Unavailable(
                f"this tenant has {own:.0f} revoked keys of the last 8 days, the most that are kept of it: delete "
                "agents, or replace the issuer's key"
            )
        if await self._stored.count(self._now() - KEPT_MS) + keys > KEYS_LIMIT:
            raise Unavailable(
                f"no more than {KEYS_LIMIT} keys of agents can be revoked within 8 days: replace the issuer's key, "
                "which refuses all credentials"
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
                level = self._errors.level(e.message, logging.ERROR, time.monotonic())
                logger.log(level, "the revoked keys in Redis cannot be read: %s", e.message)
            else:
                self._errors.clear()
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))

    async def refresh(self) -> None:
        """Read what is new, or everything if Redis has more or fewer keys than this node. Raises BusUnavailable."""
        now = self._now()
        oldest = now - KEPT_MS
        if self._oldest <= oldest:
            self._keep(frozenset(key for key in self._known if key.at > oldest))
        known = self._known
        found = await self._stored.since(max(oldest, self._read_at - OVERLAP_MS))
        if await self._stored.count(oldest) != len(known) + len(found - known):
            found = await self._stored.since(oldest)
            if lost := known - found:
                logger.warning("Redis has lost %d revoked keys of agents: they are written again", len(lost))
                await self._stored.add(lost, self._now())
        self._read_at = now
        self._learn(found)

    async def close_issued_by(self, issuers: Iterable[str]) -> int:
        """Close the links whose credentials were signed by one of these keys, given by their thumbprints. Returns how
        many there were. The agents may come back with other credentials."""
        refused = {issuer[:ISSUER_CHARACTERS] for issuer in issuers}
        waiting = [link for link, proof in self._hub.opening.proofs() if proof.issuer[:ISSUER_CHARACTERS] in refused]
        closed = self._close_issued(link for link in waiting if isinstance(link, Session))
        sessions = list(self._hub)
        for at in range(0, len(sessions), SLICE):
            closed += self._close_issued(s for s in sessions[at : at + SLICE] if s.identity.issuer in refused)
            await asyncio.sleep(0)
        self._closed += closed
        return closed

    def _close_issued(self, sessions: Iterable[Session]) -> int:
        found = [session for session in sessions if session.open]
        for session in found:
            session.close(
                CloseCode.DISCONNECTED, "the issuer's key of this agent's credential is refused: connect again",
                random.randrange(HANDED_OUT_MS),
            )  # fmt: skip
        return len(found)

    def _learn(self, found: frozenset[RevokedKey]) -> None:
        if new := found - self._known:
            self._keep(self._known | new)
            self._close(new)

    def _keep(self, known: frozenset[RevokedKey]) -> None:
        """Only called when the keys change, because with all that there may be it takes a tenth of a second."""
        self._known = known
        self._times = {key.thumbprint: key.at for key in sorted(known)}
        self._oldest = min((key.at for key in known), default=math.inf)

    def _close(self, keys: Iterable[RevokedKey]) -> None:
        for _, thumbprint, agent in keys:
            # A claim may be under way for a newer link than the one that is there.
            for session in {self._hub.get(agent), self._hub.registering(agent)}:
                if session is not None and session.open and session.identity.key == thumbprint[:KEY_CHARACTERS]:
                    self._closed += 1
                    logger.warning("closed the link of agent %s: its key %s was revoked", agent, thumbprint)
                    session.close(CloseCode.REVOKED, CloseCode.REVOKED.meaning)
