"""The times that several modules of `routing` must agree on, and the wait for Redis after an error.

Names that end in _MS are in milliseconds of Redis TIME, the others in seconds.
"""

from __future__ import annotations

import asyncio
import random

from fairlead.store.store import Store

VALID_MS = 3_000
"""How long a claim, or the dispatch of a command that is in Redis already, may take to be executed. A node that gives
one up waits for as long before it acts on that (see `Registration.register`) or repeats it."""
POST_VALID_MS = 1_000
"""How long a posted command may take to be executed: the store's timeout, before which no caller is told that it
failed. It is counted from the call by the fleet's clock, which is never ahead of the server's. So a server that was
frozen refuses the command when it finds it in its buffer, and a command that its caller was told is refused does not
run."""
POST_DOUBT = 5.0
"""Seconds that the caller of a post waits for Redis, if it did not answer, to say whether the post was executed. A
server that restarts or fails over is usually back by then; proxies in front of the API wait for 30 s and more."""
RING_AGAIN_MS = 5_000
"""A doorbell takes milliseconds. After this time the command sweeper checks that it was handled."""
RING_RARELY_MS = 60_000
"""How often at least it checks a command that an agent does not acknowledge: thousands of agents may hang at once."""
OFFER_VALID_MS = 2_000
"""How long the node that has an agent may send it a command by its doorbell alone, from the acceptance on."""
OFFER_SETTLED_MS = 3_000
"""After this time an offer was taken or given back, unless its node is gone: a second is for clocks, and for the way of
what gives it back."""
CANCEL_MS = 10_000
"""The protocol gives an agent 10 s to end a cancelled command."""
CANCEL_AGAIN_MS = 2_000
"""A cancel that the agent has not followed by then may have been lost: the command sweeper sends it again."""
GRACE_MS = 1_000
"""An agent ends a command at its deadline by itself, and its end is on the way. After this time the command sweeper has
a second for thousands of others that are due at the same moment: every command has ended two seconds after its
deadline."""


async def wait_for_redis(store: Store, timeout: float) -> bool:
    """After a BusUnavailable, wait until Redis answers, and then for a random moment. Returns False if Redis does not
    answer within `timeout` seconds. The random moment spreads those who wait, and paces them if Redis refuses commands,
    for example because it is out of memory.
    """
    back = await store.wait_available(timeout)
    if back:
        await asyncio.sleep(random.uniform(0.1, 1.0))
    return back
