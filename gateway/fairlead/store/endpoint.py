"""Where the server is, and how a connection to it is made: the only caller of redis-py's connection classes.

Used by the pipeliner, the reader and the embedded server, one connection each. redis-py does the address
grammar, TLS and authentication; its pool, retries and time-outs stay off, because they repeated an XADD over
a freeze. A connection handed out has answered PING: a frozen server still accepts TCP, so a handshake alone
proves nothing. Passwords never appear in `address`, which is what errors and logs show.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
from typing import Any, Protocol, cast

import hiredis
from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.connection import parse_url
from redis.exceptions import RedisError

from fairlead.errors import BusUnavailable, ConfigError
from fairlead.store.errors import UNFIT_SERVER, reply_code
from fairlead.store.reply import Arg, Reply
from fairlead.store.reply_limit import ReplyLimit

CONNECT_TIMEOUT = 1.0
"""Seconds for TCP, TLS, AUTH and PING together: within one data centre they take milliseconds."""
MOST_PATIENT = 4
"""Times that: a process short of CPU needs longer for these half dozen turns of its loop, and must not be kept from
Redis for as long as it is short of CPU."""
SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103
"""Bytes of the path of a Unix socket: `sun_path` in unix(7) and in macOS' sys/un.h, less the zero byte at its end."""


class _RedisPyConnection(Protocol):
    """What we use of redis-py's connection, which has no types of its own."""

    async def connect(self) -> None: ...
    async def can_read(self) -> bool: ...
    async def send_packed_command(self, command: list[bytes], check_health: bool) -> None: ...
    async def read_response(self, disable_decoding: bool, timeout: float) -> Reply: ...
    async def disconnect(self, nowait: bool) -> None: ...


class RedisConnection:
    """One connection. It sets no deadline of its own: its owner holds the clock."""

    def __init__(self, redis: _RedisPyConnection) -> None:
        self._redis = redis

    async def send(self, packed: bytes) -> None:
        await self._redis.send_packed_command([packed], check_health=False)

    async def read(self) -> Reply:
        """The next reply; redis-py's error for an error reply, or when the connection is lost."""
        return await self._redis.read_response(disable_decoding=True, timeout=math.inf)

    async def call(self, *args: Arg) -> Reply:
        await self.send(pack(args))
        return await self.read()

    async def is_spent(self) -> bool:
        """Whether the server has hung up (or talks out of turn): nothing may be sent any more."""
        try:
            return await self._redis.can_read()
        except (RedisError, OSError):
            return True

    async def close(self) -> None:
        try:
            await self._redis.disconnect(nowait=True)
        except (RedisError, OSError):
            pass  # it is gone either way


class Endpoint:
    def __init__(self, url: str, client_name: str = "fairlead", allowance: ReplyLimit | None = None) -> None:
        """`allowance`: of the bytes that the server may send; none for one that is trusted."""
        try:
            options = cast("dict[str, Any]", parse_url(url))
        except ValueError as e:
            raise ConfigError(
                f"invalid Redis URL: expected redis://host:6379, rediss://host:6379 or unix:///path ({e})"
            ) from e
        # Pool options of the address have no meaning for a single connection; ours override the rest.
        for name in ("max_connections", "timeout", "retry_on_timeout", "health_check_interval"):
            options.pop(name, None)
        self._class = options.pop("connection_class", TcpConnection)
        self._options = options | {
            "protocol": 2,
            "decode_responses": False,
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "client_name": client_name,
            "driver_info": None,
        }
        if allowance is not None:
            self._options["parser_class"] = allowance.parser
        self.address = str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")
        path = options.get("path")
        if path is not None and len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
            raise ConfigError(
                f"the path of the Unix socket {path} has {len(os.fsencode(path))} bytes, and the system takes at most "
                f"{SOCKET_PATH_LIMIT}; make a symbolic link to its folder from a shorter path, and name that"
            )
        self._make()  # refuses unknown options now, not at the first connection

    def _make(self) -> _RedisPyConnection:
        try:
            return cast("_RedisPyConnection", self._class(**self._options))
        except (TypeError, ValueError, RedisError) as e:
            raise ConfigError(f"invalid option in the Redis URL for {self.address}: {e}") from e

    async def connect(self, timeout: float = CONNECT_TIMEOUT) -> RedisConnection:
        """A connection that has answered PING, or `BusUnavailable` that says why not."""
        redis = self._make()
        connection = RedisConnection(redis)
        try:
            async with asyncio.timeout(timeout):
                await redis.connect()
                await connection.call("PING")
        except BaseException as e:
            await connection.close()
            if isinstance(e, TimeoutError):
                raise BusUnavailable(f"Redis at {self.address} did not answer within {timeout:g} s") from e
            if isinstance(e, RedisError | OSError):
                reason = UNFIT_SERVER.get(reply_code(e))
                raise BusUnavailable(
                    f"Redis at {self.address} is not available: {reason or e or type(e).__name__}"
                ) from e
            raise
        return connection


def pack(args: tuple[Arg, ...]) -> bytes:
    packed: bytes = hiredis.pack_command(args)  # type: ignore[arg-type]  # its stub knows tuples of one only
    return packed


def patience(timeout: float, attempt: int) -> float:
    """Seconds that try number `attempt` to connect may take, of a first one that may take `timeout`."""
    return timeout * min(1 + attempt, MOST_PATIENT)


def reconnect_delay(attempt: int) -> float:
    """Seconds before try number `attempt`: full jitter over 50 ms to a ceiling that grows to 1 s.

    The floor keeps a refusing server from being hammered; the ceiling is what a healed server costs us at
    most.
    """
    ceiling: float = min(1.0, 0.1 * 2 ** min(attempt, 4))
    return random.uniform(0.05, ceiling)
