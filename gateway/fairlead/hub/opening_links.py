"""The links between their acceptance and their welcome: how many there may be at once, and whose they are.

The link endpoint asks before it accepts a link. A node that accepts faster than it can welcome works for agents that
give up before they are served, and all of them come back: from a certain load on it would welcome nobody (a metastable
failure). So the number of links that wait for their welcome is bounded, and the bound follows how long they wait. It
grows by one with every welcome that came in time, which doubles it in the time of one claim, and loses a quarter when
one came late. The time from hello to welcome is the only measure, because it contains everything that can be short: CPU
time, whoever has the CPU meanwhile, the event loop, and Redis.

It is pure: the time is an argument. `Hub` has one; the endpoint, `LinkHandler` and `Registration` report to it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from fairlead.identity.link_challenge import LinkProof

FIRST: Final = 256
"""The bound of a node that has just started: at a round trip of 0.1 s it allows 2,000 links a second."""
LEAST: Final = 16
"""The bound never falls below this: claims are sent in batches of 16."""
MOST: Final = 4_096
"""The bound never exceeds this. A link that waits takes some 3 KB."""
TARGET: Final = 2.0
"""Seconds from hello to welcome that are in time. An idle node takes 1 ms; agents wait 30 s, and one that is refused
comes back after a second at the earliest. A process that has its CPU only now and then may need half a second without
having too much to do."""
LATE: Final = 4.0
"""Seconds after which a claim that is still under way stops all acceptance, because the bound can follow only welcomes
that come."""
SHARED: Final = 0.75
"""The share of the bound that is given to whoever comes first. The rest is for addresses that have less than their
share, so that the storm of one address does not keep others out. A bound that falls is multiplied by it too: what came
first then fills the new bound, and does not exceed it."""
MEMORY: Final = 5.0
"""Seconds over which refusals fade that tell how many agents will come back."""


class OpeningLinks:
    """The links that were accepted and are not welcomed yet, with the address of each and the age of its claim."""

    def __init__(self) -> None:
        self.bound = FIRST
        self._addresses: dict[Hashable, str] = {}
        """The links, each with its address."""
        self._counts: dict[str, int] = {}
        """How many of them each address has."""
        self._proofs: dict[Hashable, LinkProof] = {}
        """What those are checked against that were not opened with the shared token."""
        self._claims: OrderedDict[Hashable, float] = OrderedDict()
        """Those whose agent is being claimed, the oldest first, and since when. An OrderedDict, because a dict finds
        its oldest entry only by passing over all entries deleted before it."""
        self._unchanged_until = 0.0
        self._last_wait = TARGET
        self._refusals = 0.0
        """The refusals of the last seconds, which fade."""
        self._refused_at = 0.0

    def __len__(self) -> int:
        return len(self._addresses)

    def oldest_claim(self, now: float) -> float:
        """Seconds for which the oldest claim has been under way; 0 if there is none."""
        return now - next(iter(self._claims.values())) if self._claims else 0.0

    def has_shared_room(self, now: float) -> bool:
        """Whether every address may open a link now."""
        return len(self._addresses) < self.bound * SHARED and self.oldest_claim(now) <= LATE

    def has_room(self, address: str, now: float) -> bool:
        """Whether this address may open a link now."""
        if self.has_shared_room(now):
            return True
        bound = self.bound
        if len(self._addresses) >= bound or self.oldest_claim(now) > LATE:
            return False
        # Divide by one more than are present, so that there is always room for a new address.
        present = len(self._counts) + (address not in self._counts)
        return self._counts.get(address, 0) < bound / (present + 1)

    def return_time(self, now: float) -> float:
        """Count a refused link. Returns the seconds over which the agents that were refused lately should come back, so
        that this node can take them."""
        self._refusals = 1 + self._refusals * math.exp((self._refused_at - now) / MEMORY)
        self._refused_at = now
        # Little's law: so many links at once, each of which waits so long, are welcomed at the quotient of both.
        return self._refusals * self._last_wait / max(len(self), LEAST)

    def add(self, link: Hashable, address: str, proof: LinkProof | None = None) -> None:
        """Record that a link is accepted. Whoever accepts it sees to it that it is discarded in the end."""
        if proof is not None:
            self._proofs[link] = proof
        self._addresses[link] = address
        self._counts[address] = self._counts.get(address, 0) + 1

    def proof(self, link: Hashable) -> LinkProof | None:
        """What the link is checked against; None if it was opened with the shared token."""
        return self._proofs.get(link)

    def proofs(self) -> list[tuple[Hashable, LinkProof]]:
        """Each link that was not opened with the shared token, and what it is checked against."""
        return list(self._proofs.items())

    def claim_began(self, link: Hashable, now: float) -> None:
        """Record that the link waits only for this node and Redis from now on."""
        if link in self._addresses:
            self._claims.pop(link, None)
            self._claims[link] = now

    def claim_paused(self, link: Hashable) -> None:
        """Record that the claim waits for Redis to return. The link counts, but not its age."""
        self._claims.pop(link, None)

    def welcomed(self, link: Hashable, now: float) -> None:
        """Record that the link was welcomed, and adjust the bound."""
        self._last_wait = now - self._claims.get(link, now)
        if self._last_wait > TARGET:
            # The links that wait now were accepted under the old bound: their lateness does not judge the new one.
            if now >= self._unchanged_until:
                self.bound = max(LEAST, int(self.bound * SHARED))
                self._unchanged_until = now + TARGET
        elif len(self._addresses) * 2 > self.bound:  # otherwise nothing shows that more is possible
            self.bound = min(MOST, self.bound + 1)
        self.discard(link)

    def discard(self, link: Hashable) -> None:
        """Forget a link that was welcomed or is over. Does nothing if it is forgotten already."""
        address = self._addresses.pop(link, None)
        if address is None:
            return
        self._claims.pop(link, None)
        self._proofs.pop(link, None)
        left = self._counts[address] - 1
        if left:
            self._counts[address] = left
        else:
            del self._counts[address]
