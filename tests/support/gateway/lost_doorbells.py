"""A node that no doorbell reaches, because its inbox is removed again and again. Tests of what is rung again use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead.bus.inbox import inbox_key
from fairlead.fleet import schema
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import text


@asynccontextmanager
async def lost_doorbells(store: Pipeliner, agent: str) -> AsyncIterator[None]:
    """Lose nearly all doorbells to the node that has this agent."""
    inbox = inbox_key(text(await store.submit("HGET", schema.agent_key(agent), "lease")))

    async def remove() -> None:
        while True:
            await store.submit("UNLINK", inbox)

    removing = asyncio.create_task(remove())
    try:
        yield
    finally:
        removing.cancel()
        await asyncio.gather(removing, return_exceptions=True)
