"""Node → counts: the row that each node heartbeats, the list of their heartbeats, and the table of all nodes.

Written by each node every few seconds. A node reads of the others when they last beat, all in one answer, and of each
life only once what stands in its row: so the calls of a beat do not grow with the nodes. The operator, which is one,
reads all rows. Raises BusUnavailable when Redis is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from fairlead.fleet import lua, schema
from fairlead.fleet.schema import NodeRow, NodeTable
from fairlead.store.answer import Answer, map_bounded
from fairlead.store.backlog import Priority
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Arg, Reply, integer, items, octets, table, text

ROW_BYTES = 512
"""That the row of a node has, with the names of its fields."""
ROWS_AT_ONCE = 64


class NodeRows:
    def __init__(self, store: Pipeliner) -> None:
        self._store = store

    async def renew(
        self, node: str, epoch: str, counts: dict[str, str | int | float], *, begin: bool, replaces: str = ""
    ) -> tuple[bool, int]:
        """Write this node's row; returns (whether this life goes on, Redis TIME in ms). A life that begins may take the
        place of the one whose epoch is `replaces`, and of no other.

        False: the row is gone or belongs to another life, so whatever this node holds may be another's by now.
        """
        flat = [item for pair in counts.items() for item in pair]
        answer = items(await self._renew(node, (epoch, "1" if begin else "", schema.NODE_TTL_MS, replaces, *flat)))
        good, now = integer(answer[0]) == 1, integer(answer[1])
        if good:
            await self._note_heartbeat(f"{node}#{epoch}", now)
        return good, now

    def _renew(self, node: str, args: tuple[Arg, ...]) -> asyncio.Future[Reply]:
        return self._store.run(lua.HEARTBEAT, (schema.node_key(node),), args, priority=Priority.CONTROL)

    def _note_heartbeat(self, lease: str, at: int) -> asyncio.Future[Reply]:
        return self._store.submit("ZADD", schema.NODES, at, lease, priority=Priority.CONTROL)

    async def refresh(self, known: NodeTable, now: int, back: int) -> NodeTable:
        """`known` as it is now: when each node has last beaten, and the rows of those lives that are new. The counts of
        the others are those of their first heartbeats."""
        rows: dict[str, NodeRow] = {}
        new: list[str] = []
        heartbeats = await self._heartbeats(len(known.rows()))
        for node, (lease, at) in heartbeats.items():
            row = known.row(lease)
            if row is None:
                new.append(node)
            else:
                rows[node] = replace(row, at=at)
        rows |= await self._rows(new)
        if any(now - at > schema.NODE_TTL_MS for _, at in heartbeats.values()):
            await self._remove_expired(now)
        return NodeTable(rows, back)

    async def look_up(self, node: str) -> tuple[NodeRow | None, int]:
        """The row of one node, None when it has no row, and Redis TIME in ms."""
        found, time = self._row(node), self._store.submit("TIME", priority=Priority.CONTROL)
        row = await found
        seconds, micros = items(await time)
        return NodeRow.parse(node, row) if row else None, integer(seconds) * 1000 + integer(micros) // 1000

    async def read_all(self, now: int, back: int) -> NodeTable:
        """The rows of all nodes that beat within their rows' life."""
        heartbeats = await self._heartbeats(schema.INDEX_SHARDS)
        await self._remove_expired(now)
        return NodeTable(await self._rows(list(heartbeats)), back)

    async def _heartbeats(self, expected: int) -> dict[str, tuple[str, int]]:
        """Of each node its newest life and when that has last beaten (ms). `expected`: how many there may be."""
        reply = await self._store.submit(
            "ZRANGE", schema.NODES, 0, -1, "WITHSCORES", priority=Priority.CONTROL, expected=64 * (expected + 1)
        )
        flat = items(reply)
        newest: dict[str, tuple[str, int]] = {}
        for i in range(0, len(flat), 2):  # in the order of the heartbeats
            lease = text(flat[i])
            newest[lease.partition("#")[0]] = lease, int(float(octets(flat[i + 1])))
        return newest

    async def _rows(self, names: Sequence[str]) -> dict[str, NodeRow]:
        """Of those that have one."""
        answers = map_bounded(self._row, names, ROWS_AT_ONCE)
        return {name: NodeRow.parse(name, row) async for name, row in answers if row}

    def _row(self, node: str) -> Answer[dict[bytes, bytes]]:
        key = schema.node_key(node)
        return Answer(self._store.submit("HGETALL", key, priority=Priority.CONTROL, expected=ROW_BYTES), table)

    def _remove_expired(self, now: int) -> asyncio.Future[Reply]:
        """Forget the heartbeats of lives whose rows have expired."""
        last = now - schema.NODE_TTL_MS
        return self._store.submit("ZREMRANGEBYSCORE", schema.NODES, "-inf", f"({last}", priority=Priority.CONTROL)

    async def mark_stopped(self, node: str, epoch: str, now: int) -> None:
        """This life ends on purpose: its row turns into one that nobody takes for alive."""
        last = now - schema.ALIVE_MS - 1
        left = self._renew(node, (epoch, "", schema.NODE_TTL_MS, "", "state", "stopped", "links", 0, "at", last))
        if integer(items(await left)[0]):
            await self._note_heartbeat(f"{node}#{epoch}", last)
