"""The times that several parts of routing must agree on, in milliseconds of Redis TIME, and how they wait for Redis."""

from __future__ import annotations

import asyncio
import random

from fairlead.store.pipeliner import Pipeliner

VALID_MS = 3_000
"""How long a claim, or the dispatch of a command that stands in Redis, may take to be executed. Who gives one up waits
for as long before it acts on that (see `Registration._admit`), or repeats it."""
POST_VALID_MS = 1_000
"""How long a posted command may take to be executed: the store's time-out, before which nobody is told that it failed.
It is counted from the call, and by the fleet's clock, which is never ahead of the server's: so a server that was frozen
refuses the command when it finds it in its buffer, and what a caller was told as refused does not happen."""
DOUBT = 5.0
"""Seconds that the caller of a post waits until Redis, which did not answer it, says whether it was executed. A server
that restarts or fails over is back by then as a rule; proxies in front of the API wait for 30 s and more."""
RING_AGAIN_MS = 5_000
"""A doorbell takes milliseconds; after this the keeper looks whether it was heard."""
CANCEL_MS = 10_000
"""The protocol gives an agent 10 s to end a cancelled command."""
CANCEL_AGAIN_MS = 2_000
"""A cancel that the agent has not followed by then may have been lost on its way: the keeper rings again."""
GRACE_MS = 1_000
"""The agent ends a command at its deadline by itself and its end is on the way. After it the keeper has a second for
thousands of others of the same moment: within two seconds of its deadline every command has ended."""


async def wait_for_redis(store: Pipeliner, timeout: float) -> bool:
    """After a BusUnavailable: wait until Redis answers, then a jittered moment; False when it does not within `timeout`
    seconds. The moment is for a Redis that answers and refuses (out of memory), and for all the others who wait."""
    back = await store.wait_available(timeout)
    if back:
        await asyncio.sleep(random.uniform(0.1, 1.0))
    return back
