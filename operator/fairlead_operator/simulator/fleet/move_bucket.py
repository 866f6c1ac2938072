"""The fleet's budget of moves as a modelled fleet has it: the token bucket of `take_moves.lua`, without a Redis.

`moves` takes from it. A simulation uses no Redis, whose clock could not run faster anyway. So this is a second
implementation of the script; a property test makes the same sequences of calls to both and compares what they grant.
"""

from __future__ import annotations

import math

DEBT_SECONDS = 5
"""Seconds of the rate that may be overdrawn (`DEBT_SECONDS` of `fairlead.fleet.moves.move_bucket`)."""
ROUNDING = 1e-6
"""By how much a token may fall short and still count as one."""


class ModelMoveBucket:
    def __init__(self) -> None:
        self.tokens = math.inf
        """Moves that may be granted, as of the last call; negative while there is a debt. It begins full."""
        self._at = 0.0

    def take(self, wanted: int, rate: float, now: float) -> int:
        """Up to `wanted` moves at `rate` moves per second. `now`: seconds."""
        self._refill(rate, now)
        granted = min(wanted, max(0, math.floor(self.tokens + ROUNDING))) if rate > 0 else 0
        self.tokens -= granted
        return granted

    def overdraw(self, moves: int, rate: float, now: float) -> None:
        """Takes moves that cannot wait. The debt is bounded, and later moves wait until it is paid."""
        self._refill(rate, now)
        self.tokens = max(min(self.tokens, -rate * DEBT_SECONDS), self.tokens - moves)

    def _refill(self, rate: float, now: float) -> None:
        """A bucket holds the moves of one second, at least one, and lacks DEBT_SECONDS' worth of the rate at most."""
        self.tokens = min(max(1.0, rate), self.tokens + max(0.0, now - self._at) * rate)
        if rate > 0:
            self.tokens = max(self.tokens, -rate * DEBT_SECONDS)
        self._at = now
