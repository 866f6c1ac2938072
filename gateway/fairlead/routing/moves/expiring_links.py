"""The links that end with what has opened them: a client certificate, or the JWT of an issuer.

The platform knows nothing of what a foreign authority has withdrawn, so a link lives no longer than what it was opened
with. Some time before, its agent is told to move, as before a node stops: it opens a new link with what it has by then,
and leaves the old one, so no command is interrupted. What cannot be renewed is closed when it ends. Credentials of the
platform are not here, because the platform itself renews and revokes them.

`Registration` adds a link when it is welcomed, `LinkHandler` discards it when it is over, and the node runs `run`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairlead.errors import FairleadError
from fairlead.hub.session import Session
from fairlead.identity.authenticated_agent import AuthenticatedAgent
from fairlead.oidc.jwt_verifier import UnknownKey
from fairlead.wire.close_codes import CloseCode

logger = logging.getLogger(__name__)

INTERVAL: Final = 2.0
"""Seconds between two looks at all of these links: a key that is refused has lost its links within 5 s."""
LEAD_SHARE: Final = 0.1
"""The share of its remaining life before whose end a link is asked to move. Kubernetes renews a token when a fifth is
left, and cert-manager a certificate when a third is."""
LEAD_LIMIT: Final = 3_600.0
"""Seconds of that at most."""
GRACE: Final = 60
"""Seconds after the end, for clocks that differ; and for agents to move when their issuer has withdrawn a key."""

REFUSED: Final = "the issuer of the agent's JWT, or its key, is not trusted any more"
"""The reason in a close frame, which has room for 123 bytes."""

Source = tuple[str, str]


@dataclass(slots=True)
class _End:
    """When the link ends, and when its agent is asked to move (Unix time in seconds); `source` as in the proof."""

    expires: float
    move_at: float
    source: Source | None


class ExpiringLinks:
    def __init__(self, now: Callable[[], int], draw: Callable[[float, float], float] = random.uniform) -> None:
        """`now` is the time of Redis in ms."""
        self.refusal: Callable[[str, str], FairleadError | None] = lambda _url, _key: None
        """Why JWTs of an issuer and key are refused now; set by the node if it trusts issuers of agents."""
        self.on_refused: Callable[[str, int], None] = lambda _reason, _count: None
        """Told why links were closed whose issuer or key is refused, and how many; set by the node."""
        self._now = now
        self._draw = draw
        self._links: dict[Session, _End] = {}
        self.moved = self.closed = 0

    def __len__(self) -> int:
        return len(self._links)

    def add(self, session: Session, agent: AuthenticatedAgent) -> None:
        """A link was welcomed that this agent has opened."""
        now = self._now() / 1000
        lead = min((agent.expires - now) * LEAD_SHARE, LEAD_LIMIT)
        # Drawn, so that agents whose certificates were issued together do not all move together.
        move_at = agent.expires - lead * self._draw(0.5, 1.0) if lead > INTERVAL else float("inf")
        self._links[session] = _End(float(agent.expires), move_at, agent.source)

    def discard(self, session: Session) -> None:
        self._links.pop(session, None)

    async def run(self) -> None:
        """Move and close the links whose time has come. Never returns."""
        while True:
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))
            try:
                self.step()
            except Exception:
                logger.exception("links whose credentials expire were not looked at")

    def step(self) -> None:
        now = self._now() / 1000
        known: dict[Source, FairleadError | None] = {}
        refused: Counter[str] = Counter()
        for session, end in list(self._links.items()):
            if end.source is not None:
                if end.source not in known:
                    known[end.source] = self.refusal(*end.source)
                self._apply(end, known[end.source], now)
            if now >= end.expires + GRACE:
                self.closed += 1
                del self._links[session]
                refusal = None if end.source is None else known[end.source]
                if refusal is None or refusal.temporary:
                    session.close(CloseCode.EXPIRED, CloseCode.EXPIRED.meaning)
                else:
                    refused[refusal.message] += 1
                    session.close(CloseCode.EXPIRED, REFUSED)
            elif now >= end.move_at and session.ready:
                self.moved += 1
                end.move_at = float("inf")
                session.announce_drain("age", 0)
        for reason, count in refused.items():
            logger.warning("closed %d links: %s", count, reason)
            self.on_refused(reason, count)

    def _apply(self, end: _End, refusal: FairleadError | None, now: float) -> None:
        """End a link early whose issuer or key is not trusted any more. A key that its issuer has withdrawn leaves time
        to move; while the issuer is away, nothing happens to open links."""
        if refusal is None or refusal.temporary:
            return
        if isinstance(refusal, UnknownKey):
            if end.expires > now:
                end.expires, end.move_at = now, now
        else:
            end.expires = now - GRACE
