"""Node → counts: the row that each node beats, and the table of all rows.

Written by each node every few seconds, read by every node and by the operator. Writes grow with nodes, never with
agents. Raises BusUnavailable when Redis is away.
"""

from __future__ import annotations

from fairlead.fleet import lua, schema
from fairlead.fleet.schema import NodeRow, NodeTable
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items, table, text


class Load:
    def __init__(self, store: Pipeliner) -> None:
        self._store = store

    async def beat(
        self, node: str, epoch: str, counts: dict[str, str | int | float], *, begin: bool, replaces: str = ""
    ) -> tuple[bool, int]:
        """Write this node's row; returns (whether this life goes on, Redis TIME in ms). A life that begins may take the
        place of the one whose epoch is `replaces`, and of no other.

        False: the row is gone or belongs to another life, so whatever this node holds may be another's by now.
        """
        flat = [item for pair in counts.items() for item in pair]
        reply = self._store.run(
            lua.BEAT, (schema.node_key(node),), (epoch, "1" if begin else "", schema.NODE_TTL_MS, replaces, *flat)
        )
        answer = items(await reply)
        good, now = integer(answer[0]) == 1, integer(answer[1])
        if good:
            await self._store.submit("ZADD", schema.NODES, now, node)
        return good, now

    async def look_up(self, node: str) -> tuple[NodeRow | None, int]:
        """The row of one node, None when there is none, and Redis TIME in ms."""
        found, time = self._store.submit("HGETALL", schema.node_key(node)), self._store.submit("TIME")
        row = table(await found)
        seconds, micros = items(await time)
        return NodeRow.parse(node, row) if row else None, integer(seconds) * 1000 + integer(micros) // 1000

    async def read(self, now: int, back: int) -> NodeTable:
        """The rows of all nodes that beat within their rows' life; older names are cut off after 24 h."""
        cut = self._store.submit("ZREMRANGEBYSCORE", schema.NODES, "-inf", now - schema.TOMBSTONE_MS)
        names = [text(name) for name in items(await self._store.submit("ZRANGE", schema.NODES, 0, -1))]
        await cut
        replies = [self._store.submit("HGETALL", schema.node_key(name)) for name in names]
        rows = {}
        for name, reply in zip(names, replies, strict=True):
            row = table(await reply)
            if row:
                rows[name] = NodeRow.parse(name, row)
        return NodeTable(rows, back)

    async def leave(self, node: str, epoch: str, now: int) -> None:
        """This life ends on purpose: its row turns into one that nobody takes for alive."""
        await self._store.run(
            lua.BEAT,
            (schema.node_key(node),),
            (
                epoch,
                "",
                schema.NODE_TTL_MS,
                "",
                "state",
                "stopped",
                "connections",
                0,
                "at",
                now - schema.ALIVE_MS - 1,
            ),
        )
