"""Reads from Redis what the nodes of one fleet last reported.

Used by `fleet_redis`. It reads the rows with the gateway's own code, so that keys and fields are defined once. It gives
up within seconds, because the next pass follows in ten. The author of a LinkGateway chooses the server, so the size and
the number of its replies are bounded.
"""

from __future__ import annotations

import asyncio

from fairlead.errors import BusUnavailable
from fairlead.fleet.node_rows import NodeRows
from fairlead.store.reply import integer, items
from fairlead.store.reply_limit import ReplyLimit
from fairlead.store.servers.opening import open_store
from fairlead_operator.autoscaler.observation import NodeMetrics

CONNECT_TIMEOUT = 2.0
"""Seconds for the first connection; replies then take milliseconds."""
READ_TIMEOUT = 8.0
"""Seconds for all rows."""
READ_BYTES = 8 << 20
"""The maximum size of all replies of one read, in bytes. A row has some 600 bytes, so this is enough for more than
10,000 nodes."""


class NodeMetricsReader:
    """Raises ConfigError when `url` is malformed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._limit = ReplyLimit(READ_BYTES)
        self.store = open_store(url, client_name="fairlead-operator", allowance=self._limit)
        """The client for what the operator writes; usable once `read` has succeeded."""
        self._started = False

    @property
    def address(self) -> str:
        return self.store.address

    async def read(self) -> NodeMetrics:
        """Returns the rows of all nodes. Raises BusUnavailable after a second attempt, because a brief interruption is
        not an outage.
        """
        if not self._started:
            self.store.start()
            self._started = True
        self._limit.renew()
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                try:
                    return await self._read()
                except BusUnavailable:
                    return await self._read()
        except TimeoutError as e:
            message = f"Redis at {self.address} did not return the rows of all nodes within {READ_TIMEOUT:g} s"
            raise BusUnavailable(message) from e

    async def _read(self) -> NodeMetrics:
        if not await self.store.wait_available(CONNECT_TIMEOUT):
            raise BusUnavailable(self.store.last_error.message)
        seconds, micros = items(await self.store.submit("TIME"))
        now = integer(seconds) * 1000 + integer(micros) // 1000
        table = await NodeRows(self.store).read_all(now, 0, remove_expired=False)
        return NodeMetrics({row.node: row for row in table.rows()}, now)

    async def aclose(self) -> None:
        if self._started:
            await self.store.aclose()
