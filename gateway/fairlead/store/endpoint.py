"""Connections to Redis: parses the URL, connects, and hands out connections that have answered PING.

The pipeliner, the blocking reader and the embedded server use it, each for one connection. It is the only caller of
redis-py's connection classes. Where the URL names Sentinels or a Cluster, the server is looked up before each
connection. redis-py parses the URL and does TLS and authentication; its pool, retries and timeouts are not used,
because they repeated an XADD after the server had been frozen. A frozen server still accepts TCP connections, so only
an answered PING proves that it serves. `address`, which errors and logs show, never contains a password.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import hiredis
from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.connection import parse_url
from redis.exceptions import RedisError

from fairlead.errors import BusUnavailable, ConfigError
from fairlead.redis_url import EXPECTED, StoreKind, parse_redis_url, shown
from fairlead.store.errors import lacking_rule, reply_code, unfit
from fairlead.store.reply import Arg, Reply, items
from fairlead.store.reply_limit import ReplyLimit
from fairlead.store.servers.reply_stream import ReplyStream
from fairlead.store.servers.sentinels import Sentinels

CONNECT_TIMEOUT = 1.0
"""Seconds for TCP, TLS, AUTH and PING together. Within one data centre they take milliseconds."""
ELSEWHERE = ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN", "TRYAGAIN")
"""Codes of errors which say that the keys of a command are at other servers of a Cluster."""
MOST_PATIENT = 4
"""The largest multiple of the timeout that repeated attempts are given. A process that is short of CPU needs longer for
these half dozen iterations of its event loop, and must be able to reach Redis even while it is short of CPU."""
SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103
"""The longest path of a Unix socket in bytes: the size of `sun_path` in unix(7) and in the sys/un.h of macOS, less the
terminating zero byte."""


class _RedisPyConnection(Protocol):
    """What we use of redis-py's connection; redis-py does not annotate it."""

    _writer: asyncio.StreamWriter

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool) -> None: ...


class RedisConnection:
    """One connection that redis-py has made: connected, with TLS, authenticated. It has no timeouts: its owner sets
    them."""

    def __init__(self, redis: _RedisPyConnection, limit: ReplyLimit | None = None) -> None:
        self._redis = redis
        self._replies = ReplyStream(cast("asyncio.Transport", redis._writer.transport), limit)
        self.read = self._replies.read
        """Return the next reply. Raises redis-py's error for an error reply, or if the connection is lost."""
        self.name = b""
        """What the server calls this connection; empty if it was not told."""

    def send(self, packed: bytes) -> None:
        """Raises redis-py's ConnectionError if the connection is lost."""
        self._replies.write(packed)

    async def call(self, *args: Arg) -> Reply:
        self.send(pack(args))
        return await self.read()

    async def lacking_rule(self, *args: Arg) -> str:
        """The kind of rule that the user of this connection lacks for a command (see `errors.lacking_rule`); "" if it
        may run it. Raises BusUnavailable for any other error."""
        try:
            await self.call(*args)
        except (RedisError, OSError) as e:
            if rule := lacking_rule(e):
                return rule
            if reply_code(e) in ELSEWHERE:
                return ""  # a server of a Cluster checks the rights first
            raise BusUnavailable(f"Redis refuses {args[0]!s}: {unfit(e) or e}") from e
        return ""

    @property
    def spent(self) -> bool:
        """Whether the connection is unusable: the server has closed it, or has sent data that nobody asked for."""
        return self._replies.spent

    async def close(self) -> None:
        await _disconnect(self._redis)


async def _disconnect(redis: _RedisPyConnection) -> None:
    try:
        await redis.disconnect(nowait=True)
    except (RedisError, OSError):
        pass  # the connection is gone either way


class Endpoint:
    """The server that a URL leads to. `address` names it in messages; where it is looked up, the one that was found
    last."""

    def __init__(
        self,
        url: str,
        client_name: str = "fairlead",
        allowance: ReplyLimit | None = None,
        locate: Callable[[], Awaitable[tuple[str, int]]] | None = None,
    ) -> None:
        """Parse `url`. `allowance` limits the bytes that the server may send; it is None for a trusted server. `locate`
        finds a server of a Cluster. Raises ConfigError if the URL is not valid."""
        try:
            parsed = parse_redis_url(url)
            options = cast("dict[str, Any]", parse_url(parsed.server))
        except ValueError as e:
            raise ConfigError(f"invalid Redis URL: expected {EXPECTED} ({e})") from e
        # Pool options in the URL have no meaning for a single connection. Our options override the others.
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
        self._allowance = allowance
        if allowance is not None:  # until the connection is made; then ReplyStream counts
            self._options["parser_class"] = allowance.parser
        self.sentinels = None
        """Whom to ask for the primary; None for the other kinds of URL."""
        if parsed.kind is StoreKind.SENTINEL:
            self.sentinels = Sentinels(parsed, self._class, self._options)
        self._locate = self.sentinels.primary if self.sentinels is not None else locate
        path = options.get("path")
        self.address = str(path or shown(str(options.get("host", "localhost")), int(options.get("port", 6379))))
        if self._locate is not None:
            self.address = ", ".join(shown(*node) for node in parsed.nodes)
        if path is not None and len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
            raise ConfigError(
                f"the path of the Unix socket {path} has {len(os.fsencode(path))} bytes: expected at most "
                f"{SOCKET_PATH_LIMIT} (make a symbolic link to its folder and give the path through the link)"
            )
        self._make()  # raises ConfigError for unknown options now instead of at the first connection

    def _make(self) -> _RedisPyConnection:
        try:
            return cast("_RedisPyConnection", self._class(**self._options))
        except (TypeError, ValueError, RedisError) as e:
            raise ConfigError(f"invalid option in the Redis URL for {self.address}: {e}") from e

    async def connect(self, timeout: float = CONNECT_TIMEOUT) -> RedisConnection:
        """Return a connection that has answered PING, or raise `BusUnavailable` with the reason."""
        if self._locate is not None:
            host, port = await self._locate()
            self._options |= {"host": host, "port": port}
            self.address = shown(host, port)
        redis = self._make()
        try:
            async with asyncio.timeout(timeout):
                await redis.connect()
                connection = RedisConnection(redis, self._allowance)
                await self._check(connection)
        except BaseException as e:
            await _disconnect(redis)
            if isinstance(e, TimeoutError):
                raise BusUnavailable(f"Redis at {self.address} did not answer within {timeout:g} s") from e
            if isinstance(e, RedisError | OSError):
                reason = str(unfit(e) or e).rstrip(".") or type(e).__name__
                raise BusUnavailable(f"Redis at {self.address} is not available: {reason}") from e
            raise
        return connection

    async def _check(self, connection: RedisConnection) -> None:
        """Check that the server answers, and that one which Sentinels have named agrees that it is the primary: they
        learn of each other's decisions with a delay."""
        if self.sentinels is None:
            await connection.call("PING")
            return
        role = items(await connection.call("ROLE"))[0]
        if role != b"master":
            raise BusUnavailable(
                f"Redis at {self.address} is a replica, although the Sentinels of {self.sentinels.name} name it as the "
                "primary; wait for the failover"
            )

    async def superseded(self) -> str:
        """The address of the server that has taken the place of the one connected to; "" if none has, or if that
        cannot be found out now."""
        if self.sentinels is None:
            return ""
        try:
            found = shown(*await self.sentinels.primary(self.address))
        except BusUnavailable:
            return ""
        return found if found != self.address else ""

    async def aclose(self) -> None:
        if self.sentinels is not None:
            await self.sentinels.aclose()


def pack(args: tuple[Arg, ...]) -> bytes:
    packed: bytes = hiredis.pack_command(args)  # type: ignore[arg-type]  # hiredis' stub: tuples of one item only
    return packed


ASKING = pack((b"ASKING",))
"""Has a server of a Cluster execute the next command although its slot has not arrived yet."""


def words_of(packed: bytes, number: int = 0) -> list[bytes]:
    """The words of command number `number` in `packed`, which `pack` made: for what happens seldom."""
    reader = hiredis.Reader()
    reader.feed(packed)
    words: list[bytes] = []
    for _ in range(number + 1):
        words = reader.gets()
    return words


def keys_of(packed: bytes, number: int = 0) -> list[bytes]:
    """The keys of command number `number` in `packed`. Only for error messages: it parses `packed` again."""
    words = words_of(packed, number)
    return words[3 : 3 + int(words[2])] if words[0] == b"EVALSHA" else words[1:2]


def connect_timeout(base: float, attempt: int) -> float:
    """The seconds that connection attempt number `attempt` may take, where attempt 0 may take `base` seconds."""
    return base * min(1 + attempt, MOST_PATIENT)


def reconnect_delay(attempt: int) -> float:
    """The seconds to wait before attempt number `attempt`: random, from 50 ms to a limit that grows to 1 s.

    The minimum protects a server that refuses connections from a flood of attempts. The limit is the longest time for
    which a server that has recovered goes unused.
    """
    ceiling: float = min(1.0, 0.1 * 2 ** min(attempt, 4))
    return random.uniform(0.05, ceiling)
