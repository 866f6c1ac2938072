"""The URL of a fleet's Redis: one server, a primary that Sentinels name, or a Cluster.

The settings check it, the store connects by it, and the operator adds certificate authorities to it. This module is
pure: it resolves no name, and leaves the options of the query to redis-py.

redis://[user:password@]host:6379[/database][?options]                         one server
redis+sentinel://[user:password@]host:26379,host:26379/primary[/database][?options]    as its Sentinels say
redis+cluster://[user:password@]host:6379,host:6379[?options]                  a Cluster, by some of its servers
unix://[user:password@]/path[?options]                                         one server, by its Unix socket

`rediss` in place of `redis` is TLS, for Sentinels too. User and password are those of the data; a Sentinel's own are
the options `sentinel_username` and `sentinel_password`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

EXPECTED: Final = (
    "redis://host:6379, redis+sentinel://host:26379,host:26379/PRIMARY, redis+cluster://host:6379,host:6379 (rediss "
    "in place of redis for TLS) or unix:///path"
)
SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
PORT: Final = 6379
SENTINEL_PORT: Final = 26379
NODES_LIMIT: Final = 64
"""Servers that a URL may name. A Cluster tells the others."""


class StoreKind(StrEnum):
    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class RedisUrl(NamedTuple):
    kind: StoreKind
    tls: bool
    nodes: tuple[tuple[str, int], ...]
    """Host and port of each server that is named: Sentinels, or servers of the Cluster. Empty for a Unix socket."""
    primary: str
    """The name by which Sentinels know the primary; "" for the other kinds."""
    server: str
    """The URL of the first of `nodes` as redis-py reads it, with the user, the database and the options of the data."""
    sentinel_user: str = ""
    sentinel_password: str = ""


def parse_redis_url(raw: str) -> RedisUrl:
    """Raises ValueError, whose message may quote a part of the URL, and with it a part of a password."""
    parts = urlsplit(raw)
    transport, _, kind_name = parts.scheme.partition("+")
    if parts.scheme == "unix" and parts.path:
        return RedisUrl(StoreKind.SERVER, False, (), "", raw)
    try:
        kind = StoreKind(kind_name or StoreKind.SERVER)
    except ValueError:
        raise ValueError("its scheme is unknown") from None
    if transport not in ("redis", "rediss") or kind_name == StoreKind.SERVER:
        raise ValueError("its scheme is unknown")
    if kind is StoreKind.SERVER:
        if not parts.hostname or parts.port == 0:
            raise ValueError("it names no host and port")
        return RedisUrl(kind, transport == "rediss", ((parts.hostname, parts.port or PORT),), "", raw)
    return _several(kind, transport, parts)


def _several(kind: StoreKind, transport: str, parts: SplitResult) -> RedisUrl:
    login, at, hosts = parts.netloc.rpartition("@")
    nodes = tuple(_node(host, SENTINEL_PORT if kind is StoreKind.SENTINEL else PORT) for host in hosts.split(","))
    if len(nodes) > NODES_LIMIT:
        raise ValueError(f"it names {len(nodes)} servers: expected at most {NODES_LIMIT}")
    primary, database = "", parts.path.strip("/")
    if kind is StoreKind.SENTINEL:
        primary, _, database = (unquote(part) for part in database.partition("/"))
        if not primary:
            raise ValueError("the name of the primary is missing after the Sentinels, as in /mymaster")
    elif database not in ("", "0"):
        raise ValueError("a Cluster has no databases, so the URL must not name one")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    user, password = (options.pop(name, "") for name in SENTINEL_OPTIONS)
    query = f"?{urlencode(options)}" if options else ""
    host, port = nodes[0]
    server = f"{transport}://{login}{at}{_bracketed(host)}:{port}/{database}{query}"
    return RedisUrl(kind, transport == "rediss", nodes, primary, server, user, password)


def _node(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.port == 0 or parts.username is not None:
        raise ValueError("it names no host and port")
    return parts.hostname, parts.port or port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def shown(host: str, port: int) -> str:
    """An address in messages and metrics."""
    return f"{_bracketed(host)}:{port}"


def with_option(raw: str, name: str, quoted: str) -> str:
    """The URL `raw` with one more option, whose value is quoted already."""
    return f"{raw}{'&' if urlsplit(raw).query else '?'}{name}={quoted}"
