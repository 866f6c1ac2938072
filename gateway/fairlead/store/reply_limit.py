"""A limit on the bytes that may be read from a Redis server, for a caller that does not trust the server.

The operator sets one, because the authors of LinkGateways name its servers. Nodes set none: they cannot work without
their Redis anyway. A server that exceeds the limit loses the connection before more of its data is in memory.
"""

from __future__ import annotations

from redis.asyncio.connection import DefaultParser
from redis.exceptions import ConnectionError as ConnectionLost


class ReplyLimit:
    """`left` is the number of bytes that may still be read. The owner calls `renew` before each new piece of work."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.left = most

    def renew(self) -> None:
        self.left = self.most

    def parser(self, socket_read_size: int) -> BoundedParser:
        """Make the parser of a connection. redis-py calls this as its `parser_class`."""
        return BoundedParser(socket_read_size, self)


class BoundedParser(DefaultParser):  # type: ignore[misc,valid-type]  # the class depends on whether hiredis exists
    """The parser of redis-py, which also counts the bytes that it reads."""

    def __init__(self, socket_read_size: int, allowance: ReplyLimit) -> None:
        super().__init__(socket_read_size)
        self._allowance = allowance

    async def read_from_socket(self) -> bool:
        if self._allowance.left < 0:
            raise ConnectionLost(f"the server sent more than the {self._allowance.most} bytes that it may send")
        received = await self._stream.read(self._read_size)
        if not received:
            raise ConnectionLost("the server closed the connection")
        self._allowance.left -= len(received)
        self._reader.feed(received)
        return True
