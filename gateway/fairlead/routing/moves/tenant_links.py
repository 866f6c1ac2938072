"""Closes the links of agents whose tenant was removed from the file of roles.

The node calls `close_removed` when the file has changed. New links of such agents are refused by their credentials.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.tenant import tenant_of
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.retry import HANDED_OUT_MS

logger = logging.getLogger(__name__)

SLICE: Final = 1_000
"""Links that are looked at in one turn of the event loop: half a millisecond."""
AGAIN: Final = 1.0
"""Seconds until the links that were about to be open are looked at once more."""
REASON: Final = "the tenant of this agent was removed from the file of roles"


class TenantLinks:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.closed = 0

    async def close_removed(self, declares: Callable[[str], bool], on_closed: Callable[[str, int, str], None]) -> None:
        """Close the links of tenants that there are not. `on_closed` is told the reason, how many links there were, and
        of which tenant."""
        closed: Counter[str] = Counter()
        # Of a link that says hello meanwhile, only the proof has named the tenant so far.
        opening = [
            (link, tenant_of(proof.agent)) for link, proof in self._hub.opening.proofs() if isinstance(link, Session)
        ]
        self._close(opening, declares, closed)
        sessions = list(self._hub)
        for at in range(0, len(sessions), SLICE):
            self._close(((one, tenant_of(one.agent)) for one in sessions[at : at + SLICE]), declares, closed)
            await asyncio.sleep(0)
        if opening:
            await asyncio.sleep(AGAIN)
            self._close(opening, declares, closed)
        for tenant, count in closed.items():
            logger.warning("closed %d links of the tenant %s, which was removed from the file of roles", count, tenant)
            on_closed(REASON, count, tenant)

    def _close(
        self, links: Iterable[tuple[Session, str]], declares: Callable[[str], bool], closed: Counter[str]
    ) -> None:
        for session, tenant in links:
            if session.open and not declares(tenant):
                # Drawn, because the agents come back, and are refused until the tenant is declared again.
                session.close(CloseCode.DISCONNECTED, REASON, random.randrange(HANDED_OUT_MS))
                closed[tenant] += 1
                self.closed += 1
