"""Which Redis server has the data, and which nodes have compared what they know with it; in a Cluster, each primary.

The server whose data has been compared is noted in Redis itself, by its id (see `server_identity` in `store`). A node
that finds another one there knows that a failover, or a restart, is not over yet. What is noted about a primary of a
Cluster is on that primary, so that the comparison with one never waits for another. Servers are named as `Store.owner`
names them. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from fairlead.fleet import schema
from fairlead.store.answer import answers_or_errors
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, text
from fairlead.store.servers.server_identity import SECTIONS, ServerIdentity, parse_identity
from fairlead.store.store import Store

COMPARED_MS: Final = 600_000
"""How long it is noted which nodes have compared: far longer than all of them take."""
IDENTITY_BYTES: Final = 4_096


class ServingServer:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_all(self) -> dict[str, ServerIdentity]:
        """The servers that answer now, by their names. Raises BusUnavailable if none does."""
        owners = tuple(self._store.owners())
        answers = await answers_or_errors([self._ask(owner) for owner in owners])
        found = {
            owner: parse_identity(reply)
            for owner, reply in zip(owners, answers, strict=True)
            if not isinstance(reply, Exception)
        }
        if not found:
            raise next((e for e in answers if isinstance(e, Exception)), self._store.last_error)
        return found

    async def read(self, owner: str) -> str:
        """The id of one server."""
        return parse_identity(await self._ask(owner)).id

    def _ask(self, owner: str) -> asyncio.Future[Reply]:
        return self._store.submit_to(owner, *SECTIONS, priority=Priority.CONTROL, expected=IDENTITY_BYTES)

    async def compared(self, owner: str) -> str:
        """The id of the server whose data has been compared; "" if none was noted yet."""
        key = schema.compared_server_key(self._store.tag_of(owner))
        reply = await self._store.submit("GET", key, priority=Priority.CONTROL)
        return "" if reply is None else text(reply)

    async def note_compared(self, owner: str, server: str) -> None:
        """Note that all nodes have compared what they know with this server."""
        key = schema.compared_server_key(self._store.tag_of(owner))
        await self._store.write("SET", key, server, priority=Priority.CONTROL)

    async def node_compared(self, owner: str, server: str, node: str) -> None:
        """Note that this node has."""
        key = schema.compared_key(server, self._store.tag_of(owner))
        added = self._store.write("SADD", key, node, priority=Priority.CONTROL)
        await self._store.write("PEXPIRE", key, COMPARED_MS, priority=Priority.CONTROL)
        await added

    async def missing(self, owner: str, server: str, nodes: Iterable[str]) -> set[str]:
        """Those of `nodes` that have not compared yet."""
        wanted = list(nodes)
        key = schema.compared_key(server, self._store.tag_of(owner))
        reply = await self._store.submit("SMISMEMBER", key, *wanted, priority=Priority.CONTROL)
        return {node for node, there in zip(wanted, items(reply), strict=True) if not integer(there)}
