"""Which primary of a Cluster has which hash slot, by redis-py's discovery.

`ClusterStore` reads it for every call, and has it read again when a primary is lost or answers that a slot has moved.
redis-py asks the servers one after the other (CLUSTER SLOTS) until one answers; that connection is closed afterwards,
so that a node holds none beside those to the primaries.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from redis.asyncio.cluster import ClusterNode, NodesManager
from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.cluster import get_node_name
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import RedisClusterException, RedisError

from fairlead.errors import BusUnavailable
from fairlead.redis_url import RedisUrl, shown
from fairlead.store.reply_limit import ReplyLimit

ASK_TIMEOUT: Final = 0.5
"""Seconds that one server is given to connect, and to answer. It answers from memory, within milliseconds."""
ALL_TIMEOUT: Final = 5.0
"""Seconds for all servers together, some of which may not answer."""
DROPPED: Final = ("host", "port", "db", "path", "connection_class", "max_connections", "timeout", "retry_on_timeout",
                  "health_check_interval")  # fmt: skip
"""Options of a URL that the discovery replaces."""

DOUBTED: Final = 60.0
"""Seconds for which a server is asked last after it has said that its cluster is down: longer than the time between two
looks."""

Address = tuple[str, int]


class SlotTable:
    def __init__(self, url: RedisUrl, allowance: ReplyLimit | None = None) -> None:
        options: dict[str, Any] = dict(parse_url(url.server))
        self._class = options.get("connection_class", TcpConnection)
        self._options = {name: value for name, value in options.items() if name not in DROPPED} | {
            "socket_connect_timeout": ASK_TIMEOUT,
            "socket_timeout": ASK_TIMEOUT,
            "retry": Retry(NoBackoff(), 0),  # the caller asks again
            "protocol": 2,
            "client_name": "fairlead-discovery",
            "driver_info": None,  # CLIENT SETINFO, which a user with the least rights may not run
        }
        if allowance is not None:
            self._options["parser_class"] = allowance.parser
        self._named = url.nodes
        self._known: set[Address] = set()
        """All servers that the last answer named, replicas too: they can be asked when the named ones are gone."""
        self._doubted: tuple[Address, float] | None = None
        """The server that last said that its cluster is down, and when: it is asked after the others."""
        self.owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS

    def doubt(self, address: Address) -> None:
        """Ask the others before this server for a while, because it may be cut off from them."""
        self._doubted = address, time.monotonic()

    def primaries(self) -> list[Address]:
        """The primaries that have slots, in the order of their first ones."""
        return list(dict.fromkeys(owner for owner in self.owners if owner is not None))

    async def read(self) -> list[Address | None]:
        """The owner of each slot, as one of the servers knows it now. Raises BusUnavailable if none answers."""
        nodes = [self._node(*address) for address in dict.fromkeys((*self._named, *self._known))]
        manager = NodesManager(nodes, False, {**self._options, "connection_class": self._class})
        last = self._asked_last()
        try:
            async with asyncio.timeout(ALL_TIMEOUT):
                await manager.initialize(last_failed_node_name=last)
        except (RedisClusterException, RedisError, OSError, TimeoutError) as e:
            named = ", ".join(shown(*node) for node in self._named)
            raise BusUnavailable(f"no server of the Redis Cluster at {named} answers: {_reason(e)}") from e
        finally:
            for node in nodes:
                await _close(node)
        self._known = {(str(node.host), int(node.port)) for node in manager.nodes_cache.values()}
        cache = manager.slots_cache
        owners = {id(nodes): (str(nodes[0].host), int(nodes[0].port)) for nodes in cache.values()}
        return [owners[id(cache[slot])] if slot in cache else None for slot in range(REDIS_CLUSTER_HASH_SLOTS)]

    def _asked_last(self) -> str | None:
        """redis-py's name of the server that is asked after all others."""
        if self._doubted is None or time.monotonic() > self._doubted[1] + DOUBTED:
            return None
        return get_node_name(*self._doubted[0])

    def _node(self, host: str, port: int) -> ClusterNode:
        return ClusterNode(host, port, connection_class=self._class, **self._options)


async def _close(node: ClusterNode) -> None:
    try:
        await node.disconnect()
    except (RedisError, OSError):
        pass  # the connection is gone either way


def _reason(error: Exception) -> str:
    text = str(error)
    if "Cluster mode is not enabled" in text:
        return "it is no Cluster, or the user of the address may not run CLUSTER SLOTS"
    return (
        text.removeprefix("Redis Cluster cannot be connected. Please provide at least one reachable node: ")
        or type(error).__name__
    )
