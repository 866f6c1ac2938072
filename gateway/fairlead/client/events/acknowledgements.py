"""The acknowledgements of one reader of a group: sent beside the reading, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead.client.events.event_groups import EventGroupRequests


class Acknowledgements:
    """Sends what one reader has dealt with, many at once, while it goes on. Without a group it sends nothing."""

    def __init__(self, requests: EventGroupRequests, group: str) -> None:
        self._requests = requests
        self._group = group
        self._offsets: list[str] = []
        self._added = asyncio.Event()
        self._under_way = asyncio.Lock()
        """Held while a request is under way: the end of the block waits for it, and would otherwise cancel it."""
        self._sending: asyncio.Task[None] | None = None

    def add(self, offset: str) -> None:
        """Raises what a request has raised."""
        if self._sending is not None and self._sending.done():
            self._sending.result()
        if self._group:
            self._offsets.append(offset)
            self._added.set()

    @asynccontextmanager
    async def sent(self) -> AsyncIterator[None]:
        """Send what is added within the block. Raises what a request raises, at the latest at the end of the block."""
        sending = self._sending = asyncio.create_task(self._run())
        try:
            yield
            await self._send()
        finally:
            sending.cancel()
            done = (await asyncio.gather(sending, return_exceptions=True))[0]
        if isinstance(done, Exception):
            raise done

    async def _run(self) -> None:
        while True:
            await self._added.wait()
            await self._send()

    async def _send(self) -> None:
        async with self._under_way:
            offsets, self._offsets = self._offsets, []
            self._added.clear()
            if offsets:
                await self._requests.acknowledge(self._group, offsets)
