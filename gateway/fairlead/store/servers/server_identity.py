"""Which server answers: told apart by its run id, which is another after a restart, and its replication id, which is
another after a failover.

The pipeliner asks on each new connection, and `fleet` with each heartbeat, because a server behind an address that
stays the same may change without a new connection.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import NamedTuple

from redis.exceptions import RedisError, ResponseError

from fairlead.errors import BusUnavailable
from fairlead.store.endpoint import RedisConnection, pack
from fairlead.store.reply import Reply, text

SECTIONS = ("INFO", "server", "replication")
GET_NAME = pack((b"CLIENT", b"GETNAME"))
"""What each batch begins with. It takes the server less than a microsecond."""
ID_DIGITS = 16
"""Digits of each id that are kept: 64 bits."""


class ServerIdentity(NamedTuple):
    """`offset` is the replication offset in bytes, and `replicas` those that are connected and have all data."""

    id: str
    offset: int
    replicas: int


def parse_identity(reply: Reply) -> ServerIdentity:
    """The identity, from the reply to `SECTIONS`."""
    info = dict(line.split(":", 1) for line in text(reply).splitlines() if ":" in line)
    replicas = sum(name.startswith("slave") and "state=online" in value for name, value in info.items())
    id = f"{info.get('run_id', '')[:ID_DIGITS]}.{info.get('master_replid', '')[:ID_DIGITS]}"
    return ServerIdentity(id, int(info.get("master_repl_offset", 0)), replicas)


async def identify(connection: RedisConnection, client_name: str, address: str, timeout: float) -> str:
    """The id of the server at the other end of a new connection; "" if it may not be asked. The connection gets a name
    of its own, by which each batch checks that it still leads there. Raises BusUnavailable."""
    name = f"{client_name}.{secrets.token_hex(6)}"
    try:
        async with asyncio.timeout(timeout):
            connection.send(pack(("CLIENT", "SETNAME", name)) + GET_NAME + pack(SECTIONS))
            told: Reply = None
            for _ in range(2):
                try:
                    told = await connection.read()
                except ResponseError:
                    told = None  # the user may not ask, or something between does not know names
            connection.name = name.encode() if told == name.encode() else b""
            try:
                return parse_identity(await connection.read()).id
            except ResponseError:
                return ""
    except (TimeoutError, RedisError, OSError) as e:
        raise BusUnavailable(f"the connection to Redis at {address} was lost at its start: {e}") from e
