"""An allowance: how many bytes of a server's replies may still be read, for a caller that does not trust the server.

Set by the operator, whose servers are named by the authors of LinkGateways; nodes have none, since a node is lost
without its Redis anyway. What is beyond it ends the connection, before more of it is in memory.
"""

from __future__ import annotations

from redis.asyncio.connection import DefaultParser
from redis.exceptions import ConnectionError as ConnectionLost


class ReplyLimit:
    """`left` is what may still be read; its owner raises it to `most` again when a new piece of work begins."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.left = most

    def renew(self) -> None:
        self.left = self.most

    def parser(self, socket_read_size: int) -> BoundedParser:
        """As redis-py makes the parser of a connection."""
        return BoundedParser(socket_read_size, self)


class BoundedParser(DefaultParser):  # type: ignore[misc,valid-type]  # one of two classes, by whether hiredis is there
    """redis-py's own parser, reading from a stream that counts."""

    def __init__(self, socket_read_size: int, allowance: ReplyLimit) -> None:
        super().__init__(socket_read_size)
        self._allowance = allowance

    async def read_from_socket(self) -> bool:
        if self._allowance.left < 0:
            raise ConnectionLost(f"the server sent more than {self._allowance.most} bytes for what it was asked")
        received = await self._stream.read(self._read_size)
        if not received:
            raise ConnectionLost("the server closed the connection")
        self._allowance.left -= len(received)
        self._reader.feed(received)
        return True
