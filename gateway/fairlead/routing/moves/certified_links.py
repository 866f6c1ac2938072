"""The links of connections with a client certificate that this node has verified: closes those that a change of the
authorities or of the revocation lists refuses.

`Registration` adds a link when it is welcomed, `LinkHandler` discards it when it is over, and the node calls `apply`
when the files have changed. Links that wait for their welcome are asked too. New ones need nothing: OpenSSL judges them
by the files that hold now.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Final

from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.identity.certificate_trust import CertificateOrigin, TrustChange
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.retry import HANDED_OUT_MS

logger = logging.getLogger(__name__)

SLICE: Final = 1_000
"""Links that are looked at in one turn of the event loop: a millisecond."""
AGAIN: Final = 1.0
"""Seconds until the links that were about to be open are looked at once more."""


class CertifiedLinks:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._origins: dict[Session, CertificateOrigin] = {}
        self.closed = 0

    def __len__(self) -> int:
        return len(self._origins)

    def add(self, session: Session, origin: CertificateOrigin) -> None:
        """A link was welcomed whose connection has this certificate."""
        self._origins[session] = origin

    def discard(self, session: Session) -> None:
        self._origins.pop(session, None)

    async def apply(self, change: TrustChange) -> int:
        """Close the links that the change refuses. Returns how many there were."""
        opening = [
            (link, proof.origin)
            for link, proof in self._hub.opening.proofs()
            if isinstance(link, Session) and proof.origin is not None
        ]
        closed = self._close(opening, change)
        links = list(self._origins.items())
        for at in range(0, len(links), SLICE):
            closed += self._close(links[at : at + SLICE], change)
            await asyncio.sleep(0)
        if opening:
            await asyncio.sleep(AGAIN)
            closed += self._close(opening, change)
        return closed

    def _close(self, links: Iterable[tuple[Session, CertificateOrigin]], change: TrustChange) -> int:
        closed = 0
        for session, origin in links:
            if session.open and (reason := change.refusal(origin)):
                logger.debug("closed the link of agent %s: %s", session.agent, reason)
                # Drawn, because a change may close all links of a node.
                session.close(CloseCode.EXPIRED, reason, random.randrange(HANDED_OUT_MS))
                closed += 1
        self.closed += closed
        return closed
