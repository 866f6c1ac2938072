"""The rows of nodes: the row that each node writes with its heartbeat, the set of the last heartbeats, and the table of
all nodes.

Each node writes its row every few seconds. It reads the last heartbeats of all other nodes in one reply, and the row of
each registration only once, so that the number of calls per heartbeat does not grow with the number of nodes. The
operator, of which there is only one, reads all rows. A row that no node can have written counts as missing, so that it
harms only its own node. Raises BusUnavailable if Redis does not answer.

In a Cluster there are three copies of everything here, on different primaries: every node writes all that answer, and
of what it reads the newest counts. So a primary that is away costs no node its membership.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from fairlead.errors import BusUnavailable
from fairlead.fleet import lua, schema
from fairlead.fleet.node_table import ALIVE_MS, NodeRow, NodeTable
from fairlead.shards import SHARDS
from fairlead.store.answer import Answer, AnswerOrError, answers_or_errors, map_bounded
from fairlead.store.backlog import Priority
from fairlead.store.errors import StoreError
from fairlead.store.reply import Arg, Reply, integer, items, octets, table, text
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

ROW_BYTES = 512
"""The expected size of a node's row, including the names of its fields."""
ROWS_AT_ONCE = 64
NODE_TTL_MS = 150_000
"""A node's row outlives 30 missed heartbeats, so that it still exists after Redis or the node was frozen."""


class NodeRows:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def renew(
        self, node: str, epoch: str, counts: dict[str, str | int | float], *, begin: bool, replaces: str = ""
    ) -> tuple[bool, int]:
        """Write this node's row. Returns (whether this registration is still valid, Redis TIME in ms). With `begin`, a
        new registration may replace the one whose epoch is `replaces`, and no other.

        False means that the row is gone or belongs to another registration, so that other nodes may by now hold the
        agents of this node.
        """
        flat = [item for pair in counts.items() for item in pair]
        first = "1" if begin else ""
        accepted = await self._renew(node, (epoch, first, NODE_TTL_MS, replaces, *flat))
        now = next(now for _, now in accepted.values())
        # A copy that was away may have lost the row. To begin, all that answer must agree: another process may begin.
        good = all(good for good, _ in accepted.values()) if begin else any(good for good, _ in accepted.values())
        if good:
            for copy in [copy for copy, (good, _) in accepted.items() if not good]:
                restored = self._renew_copy(copy, node, (epoch, "1", NODE_TTL_MS, "", *flat))
                await AnswerOrError(restored)
            await self._each(lambda copy: self._note_heartbeat(copy, f"{node}#{epoch}", now))
        return good, now

    async def _renew(self, node: str, args: tuple[Arg, ...]) -> dict[int, tuple[bool, int]]:
        """By the number of each copy that answers: whether it has accepted the row, and Redis TIME in ms."""
        replies = await self._each(lambda copy: self._renew_copy(copy, node, args))
        answers = {copy: items(reply) for copy, reply in replies.items()}
        return {copy: (integer(answer[0]) == 1, integer(answer[1])) for copy, answer in answers.items()}

    def _renew_copy(self, copy: int, node: str, args: tuple[Arg, ...]) -> asyncio.Future[Reply]:
        return self._store.run(lua.HEARTBEAT, (schema.node_key(node, copy),), args, priority=Priority.CONTROL)

    def _note_heartbeat(self, copy: int, lease: str, at: int) -> asyncio.Future[Reply]:
        return self._store.write("ZADD", schema.nodes_key(copy), at, lease, priority=Priority.CONTROL)

    async def _each(self, call: Callable[[int], asyncio.Future[Reply]]) -> dict[int, Reply]:
        """The reply of each copy that answers. Raises the error of the first one if none does, and every error that
        does not come from a server that is away."""
        replies: dict[int, Reply] = {}
        away: BusUnavailable | None = None
        for copy, reply in enumerate(await answers_or_errors([call(copy) for copy in range(self._store.copies)])):
            if isinstance(reply, BusUnavailable):
                away = away or reply
            elif isinstance(reply, Exception):
                raise reply
            else:
                replies[copy] = reply
        if away is not None and not replies:
            raise away
        return replies

    async def refresh(self, known: NodeTable, now: int, back: int) -> NodeTable:
        """`known` with the current time of each node's last heartbeat and the rows of new registrations. The counts in
        all other rows remain as they were first read."""
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
        if any(now - at > NODE_TTL_MS for _, at in heartbeats.values()):
            await self._remove_expired(now)
        return NodeTable(rows, back)

    async def look_up(self, node: str) -> tuple[NodeRow | None, int]:
        """The row of one node (None if it has no row that can be read) and Redis TIME in ms."""
        found, time = AnswerOrError(self._row(node)), self._store.submit("TIME", priority=Priority.CONTROL)
        row = await self._or_other_copy(node, await found)
        seconds, micros = items(await time)
        return _read(node, row), integer(seconds) * 1000 + integer(micros) // 1000

    async def read_all(self, now: int, back: int, *, remove_expired: bool = True) -> NodeTable:
        """The rows of all nodes whose last heartbeat is not older than the lifetime of a row. The heartbeats of expired
        ones are removed, unless the caller may not write them."""
        heartbeats = await self._heartbeats(SHARDS)
        if remove_expired:
            await self._remove_expired(now)
        return NodeTable(await self._rows(list(heartbeats)), back)

    async def _heartbeats(self, expected: int) -> dict[str, tuple[str, int]]:
        """The newest lease of each node and its last heartbeat (ms). `expected` is the expected number of nodes."""
        replies = await self._each(lambda copy: self._read_heartbeats(copy, expected))
        newest: dict[str, tuple[str, int]] = {}
        for flat in map(items, replies.values()):
            for i in range(0, len(flat), 2):  # in the order of the heartbeats: the last lease of a node is its newest
                try:
                    lease, at = text(flat[i]), int(float(octets(flat[i + 1])))
                except (ValueError, OverflowError):
                    continue  # no node has written it
                node = lease.partition("#")[0]
                if node not in newest or at >= newest[node][1]:
                    newest[node] = lease, at
        return newest

    def _read_heartbeats(self, copy: int, expected: int) -> asyncio.Future[Reply]:
        return self._store.submit(
            "ZRANGE", schema.nodes_key(copy), 0, -1, "WITHSCORES", priority=Priority.CONTROL,
            expected=64 * (expected + 1),
        )  # fmt: skip

    async def _rows(self, names: Sequence[str]) -> dict[str, NodeRow]:
        """The rows of the nodes in `names` that have one that can be read."""
        answers = map_bounded(lambda name: AnswerOrError(self._row(name)), names, ROWS_AT_ONCE)
        rows = {name: await self._or_other_copy(name, row) async for name, row in answers}
        return {name: found for name, row in rows.items() if (found := _read(name, row)) is not None}

    async def _or_other_copy(self, node: str, first: dict[bytes, bytes] | Exception) -> dict[bytes, bytes] | Exception:
        """The row, or that of another copy where the first one has none or is away. It is empty where a copy answers
        and none has it: a node is new while the primary of the first copy is away."""
        found = first
        for copy in range(1, self._store.copies):
            if found and not isinstance(found, BusUnavailable):
                break
            row = await AnswerOrError(self._row(node, copy))
            if isinstance(row, dict) and (row or isinstance(found, BusUnavailable)):
                found = row
        return found

    def _row(self, node: str, copy: int = 0) -> Answer[dict[bytes, bytes]]:
        key = schema.node_key(node, copy)
        return Answer(self._store.submit("HGETALL", key, priority=Priority.CONTROL, expected=ROW_BYTES), table)

    async def _remove_expired(self, now: int) -> None:
        """Remove the heartbeats of registrations whose rows have expired."""
        last = now - NODE_TTL_MS
        await self._each(
            lambda copy: self._store.submit(
                "ZREMRANGEBYSCORE", schema.nodes_key(copy), "-inf", f"({last}", priority=Priority.CONTROL
            )
        )

    async def mark_stopped(self, node: str, epoch: str, now: int, left: int) -> None:
        """End this registration on purpose: rewrite its row so that no other node takes it for alive. `left` is the
        number of agents that have left on purpose, including those since the last heartbeat."""
        last = now - ALIVE_MS - 1
        fields = ("state", "stopped", "links", 0, "left", left, "at", last)
        accepted = await self._renew(node, (epoch, "", NODE_TTL_MS, "", *fields))
        if any(good for good, _ in accepted.values()):
            await self._each(lambda copy: self._note_heartbeat(copy, f"{node}#{epoch}", last))


def _read(node: str, row: dict[bytes, bytes] | Exception) -> NodeRow | None:
    """Return the row, or None if there is no row or no node can have written it. Raises BusUnavailable and every other
    error that the row has not caused."""
    try:
        if isinstance(row, Exception):
            raise row
        return NodeRow.parse(node, row) if row else None
    except (ValueError, StoreError) as e:
        logger.warning("the row of the node %s is ignored: %.200s", node, e)
        return None
