"""How long the answer is delayed for an address that sends wrong tokens or exceeds the accept rate.

The guard asks for each refused credential; the link endpoint, which has an instance of its own, asks for each link over
the rate. A request that is accepted is never delayed, whoever else shares its address. The score of an address grows by
one with each failure and halves every HALF_LIFE seconds: a typing error costs nothing, an agent with an old token is
answered a little later, and an attacker can make one guess every MOST seconds or so on each of its few connections. It
is pure: the time and a random number are arguments.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

FREE: Final = 5.0
"""The score up to which failures are answered at once."""
MANY: Final = 30.0
"""The score above which the answer is 429. 100 agents behind one address that all have an old token, and retry every 30
to 60 s as the protocol says, reach a score of about 130."""
CEILING: Final = 120.0
"""The highest score: two half-lives after the last failure, the answer is 401 again."""
HALF_LIFE: Final = 20.0
"""Seconds in which a score halves."""
MOST: Final = 2.0
"""The longest delay of an answer in seconds. Agents and people accept it, and client timeouts are far longer."""
ADDRESSES: Final = 4_096
"""The number of addresses remembered, at about 200 bytes each. Beyond it, the least recent one is forgotten."""


@dataclass(frozen=True, slots=True)
class Penalty:
    delay: float
    """Seconds before the answer."""
    retry_after: int
    """Seconds until the answer may be 401 again; 0 if it is 401 now."""


class Penalties:
    def __init__(self, addresses: int = ADDRESSES) -> None:
        self._most = addresses
        self._scores: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The score of each address and the time it was computed. The address that failed last comes last. An
        OrderedDict, because a dict finds its oldest entry only by passing over all entries deleted before it."""

    def __len__(self) -> int:
        return len(self._scores)

    def fail(self, key: str, now: float, draw: float) -> Penalty:
        """Count one failure of an address and return its penalty, for a `draw` in [0, 1).

        The delay is drawn from the later half of its range: otherwise hundreds of clients that fail together would be
        answered at the same moment, and would try again at the same moment.
        """
        score, at = self._scores.pop(key, (0.0, now))
        score = min(score * 0.5 ** ((now - at) / HALF_LIFE) + 1, CEILING)
        self._scores[key] = score, now
        if len(self._scores) > self._most:
            self._scores.popitem(last=False)
        ceiling = min(0.05 * 2 ** ((score - FREE) / 4), MOST) if score > FREE else 0.0
        until = math.ceil(HALF_LIFE * math.log2(score / MANY)) if score > MANY else 0
        return Penalty(ceiling * (0.5 + draw / 2), until)
