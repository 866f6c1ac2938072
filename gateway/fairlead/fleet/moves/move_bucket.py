"""The fleet's budget of moves in Redis: a token bucket that every node takes from before it moves an agent.

The operator writes its rate in every pass; `routing.moves` takes from it. Raises BusUnavailable if Redis does not
answer; moves that were granted in an answer that was lost are not made, which errs on the safe side.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.fleet import lua, schema
from fairlead.store.backlog import Priority
from fairlead.store.reply import integer, items, text
from fairlead.store.store import Store

DEBT_SECONDS = 5
"""How many seconds of the rate may be overdrawn. Other nodes wait until the debt is repaid, but not for longer than
this: they have deadlines too."""
MOVE_RATE_VALID_MS = 30_000
"""Three passes of the operator. Afterwards its rate of moves counts as that of an operator that is gone."""


class Grant(NamedTuple):
    """`moves` are granted, one every 1 / `rate` seconds. `delay` is the time in seconds until the first of them
    is due; when none is granted, until one can be."""

    moves: int
    rate: float
    delay: float


class MoveBucket:
    def __init__(self, store: Store, key: str = schema.MOVES) -> None:
        """`key` is that of the bucket: the fleet's budget of moves, or the rate of one directive."""
        self._store = store
        self._key = key

    async def take(self, wanted: int, own_rate: float, *, overdraw: bool = False) -> Grant:
        """Take up to `wanted` moves; with `overdraw` all of them, at the expense of later moves. `own_rate` is the rate
        of the whole fleet, in moves a second, while no operator sets one."""
        args = (wanted, f"{own_rate:.6f}", "1" if overdraw else "", DEBT_SECONDS)
        granted, rate, wait = items(
            await self._store.run(lua.TAKE_MOVES, (self._key,), args, priority=Priority.CONTROL)
        )
        return Grant(integer(granted), float(text(rate)), integer(wait) / 1000)

    async def set_rate(self, rate: float, most: float, now: int) -> None:
        """Allow `rate` moves a second for the next half minute, and never more than `most`. The operator calls it.
        `now` is Redis TIME in ms."""
        until = now + MOVE_RATE_VALID_MS
        await self._store.write(
            "HSET", self._key, "rate", f"{rate:.6f}", "most", f"{most:.6f}", "until", until,
            priority=Priority.CONTROL,
        )  # fmt: skip
