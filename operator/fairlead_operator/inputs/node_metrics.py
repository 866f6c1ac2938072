"""The rows of the nodes, read from one Redis: node → what it last told, aged by the clock of Redis.

One for each LinkGateway, made and closed by its keeper. It enters the gateway's own room for it, so that keys and
fields are spelled in one place. It gives up within some seconds: the next look is ten away. Who may create a
LinkGateway names the server, so that neither its answers' size nor their number may cost the operator more than that.
"""

from __future__ import annotations

import asyncio

from fairlead.errors import BusUnavailable
from fairlead.fleet.node_rows import NodeRows
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items
from fairlead.store.reply_limit import ReplyLimit
from fairlead_operator.autoscaler.history import NodeReport

CONTACT = 2.0
"""Seconds for a first connection; a reply then takes milliseconds."""
LOOK = 8.0
"""Seconds for all rows."""
LOOK_BYTES = 8 << 20
"""Of all replies of one look: a row has some 600, so this is more than 10,000 nodes."""


class NodeMetrics:
    """Raises ConfigError for a malformed address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._allowance = ReplyLimit(LOOK_BYTES)
        self._store = Pipeliner(url, client_name="fairlead-operator", allowance=self._allowance)
        self.address = self._store.address
        self._started = False

    async def read(self) -> dict[str, NodeReport]:
        """Raises BusUnavailable; one moment without an answer is not yet an outage."""
        if not self._started:
            self._store.start()
            self._started = True
        self._allowance.renew()
        try:
            async with asyncio.timeout(LOOK):
                try:
                    return await self._read()
                except BusUnavailable:
                    return await self._read()
        except TimeoutError as e:
            raise BusUnavailable(f"Redis at {self.address} did not tell all its rows within {LOOK:g} s") from e

    async def _read(self) -> dict[str, NodeReport]:
        if not await self._store.wait_available(CONTACT):
            raise BusUnavailable(self._store.last_error.message)
        seconds, micros = items(await self._store.submit("TIME"))
        now = integer(seconds) * 1000 + integer(micros) // 1000
        table = await NodeRows(self._store).read_all(now, 0)
        return {
            row.node: NodeReport(
                age=max(0, now - row.at) / 1000,
                connections=row.links,
                capacity=row.capacity,
                in_flight=row.in_flight,
                refused=row.refused,
            )
            for row in table.rows()
        }

    async def aclose(self) -> None:
        if self._started:
            await self._store.aclose()
