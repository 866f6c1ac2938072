"""The users of Redis and their least rights: which commands each of them runs, on which keys.

`fairlead redis acl` prints them as rules of Redis, and `fairlead redis check` tries them (see `rights`). A node reads
and writes the fleet, the operator reads the rows of nodes and writes what it decides, and `fairlead store` reads.
Nobody gets a channel, because doorbells are streams. `tests/gateway/test_redis_acl.py` plays a fleet with exactly these
rights, and holds that each of them is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.fleet import schema

KEY: Final = "KEY"
"""Stands for a key in the examples of commands."""

_CONNECTION: Final = {
    "ping": "ping", "client|setname": "client setname fairlead", "client|getname": "client getname",
    "info": "info memory", "select": "select 0", "role": "role", "cluster|slots": "cluster slots", "asking": "asking",
}  # fmt: skip
"""What connections begin with, and each batch, which asks for the name of its connection; `select` if the URL names a
database, `role` if Sentinels have named the server, and the last two in a Cluster."""
_CHECK: Final = {"multi": "multi", "discard": "discard"}
"""With these, `fairlead redis check` has Redis check every right of its user without running anything."""

_NODE_COMMANDS: Final = {
    **_CONNECTION, **_CHECK,
    "wait": "wait 0 1", "waitaof": "waitaof 0 0 1",
    "time": "time", "evalsha": "evalsha 0 1 KEY", "script|load": "script load 0",
    "get": "get KEY", "set": "set KEY 1", "setrange": "setrange KEY 0 1",
    "getrange": "getrange KEY 0 0", "bitfield": "bitfield KEY set u8 #0 1", "bitpos": "bitpos KEY 1 0 0",
    "incrby": "incrby KEY 1",
    "decrby": "decrby KEY 1", "strlen": "strlen KEY",
    "exists": "exists KEY", "type": "type KEY", "del": "del KEY", "unlink": "unlink KEY", "expire": "expire KEY 1",
    "pexpire": "pexpire KEY 1", "pexpireat": "pexpireat KEY 1", "pttl": "pttl KEY",
    "hget": "hget KEY 1", "hmget": "hmget KEY 1", "hgetall": "hgetall KEY", "hkeys": "hkeys KEY", "hlen": "hlen KEY",
    "hexists": "hexists KEY 1", "hset": "hset KEY 1 1", "hsetnx": "hsetnx KEY 1 1", "hdel": "hdel KEY 1",
    "hvals": "hvals KEY", "lindex": "lindex KEY 0", "llen": "llen KEY", "lrange": "lrange KEY 0 0",
    "lset": "lset KEY 0 1",
    "rpush": "rpush KEY 1",
    "sadd": "sadd KEY 1", "smismember": "smismember KEY 1",
    "xadd": "xadd KEY * 1 1", "xdel": "xdel KEY 1-0", "xinfo|stream": "xinfo stream KEY", "xlen": "xlen KEY",
    "xrange": "xrange KEY - +", "xread": "xread count 1 streams KEY 0-0", "xtrim": "xtrim KEY maxlen 1",
    "zadd": "zadd KEY 0 1", "zcard": "zcard KEY", "zcount": "zcount KEY 0 0", "zrange": "zrange KEY 0 0",
    "zrangebyscore": "zrangebyscore KEY 0 0", "zrem": "zrem KEY 1",
    "zremrangebyrank": "zremrangebyrank KEY 0 0", "zremrangebyscore": "zremrangebyscore KEY 0 0",
    "zlexcount": "zlexcount KEY - +", "zscan": "zscan KEY 0", "zscore": "zscore KEY 1",
}  # fmt: skip
_OPERATOR_COMMANDS: Final = {
    **_CONNECTION, **_CHECK,
    "time": "time", "evalsha": "evalsha 0 1 KEY", "script|load": "script load 0", "getrange": "getrange KEY 0 0",
    "set": "set KEY 1", "del": "del KEY", "pexpire": "pexpire KEY 1", "hget": "hget KEY 1",
    "hgetall": "hgetall KEY", "hset": "hset KEY 1 1", "zrange": "zrange KEY 0 0",
}  # fmt: skip
_STORE_COMMANDS: Final = {
    **_CONNECTION, **_CHECK,
    "dbsize": "dbsize", "scan": "scan 0", "memory|usage": "memory usage KEY",
    "hget": "hget KEY 1",
}  # fmt: skip

_COPIES: Final = f"{schema.NODES}:{{*"
"""The copies of the set of heartbeats that a Cluster has (see `schema.MEMBERSHIP`)."""
_EVENTS_OF_TENANTS: Final = f"{schema.EVENTS}:{{*"
"""The default tenant's are one key, without a hash tag."""
_OF_THE_OPERATOR: Final = frozenset({schema.REVISION, schema.REBALANCE, schema.SCALING_HISTORY})
"""Keys that no node writes."""


@dataclass(frozen=True, slots=True)
class RedisUser:
    """One user. `commands` has an example of each command, with `KEY` where a key stands; `keys` are patterns."""

    purpose: str
    commands: Mapping[str, str]
    keys: tuple[str, ...] = ()
    read_keys: tuple[str, ...] = ()
    """Patterns of the keys that it reads only."""

    def rules(self) -> Iterator[str]:
        """The rules as Redis takes them, which begin with nothing and end with what is allowed."""
        yield from ("resetkeys", "resetchannels", "-@all")
        yield from (f"~{pattern}" for pattern in self.keys)
        yield from (f"%R~{pattern}" for pattern in self.read_keys)
        yield from (f"+{command}" for command in self.commands)


def key_pattern(kind: str) -> str:
    """The pattern of all keys of one kind: the key itself if there is one only."""
    return kind if kind in schema.SINGLE_KEYS else f"{kind}:{{*"


USERS: Final[Mapping[str, RedisUser]] = {
    "node": RedisUser(
        "a gateway node",
        _NODE_COMMANDS,
        (*(key_pattern(kind) for kind in schema.KEY_TYPES if kind not in _OF_THE_OPERATOR), _COPIES,
         _EVENTS_OF_TENANTS),
        (schema.REVISION, schema.REBALANCE),
    ),
    "operator": RedisUser(
        "the operator",
        _OPERATOR_COMMANDS,
        (schema.REVISION, schema.REBALANCE, schema.DISCONNECT, schema.MOVES, schema.SCALING_HISTORY,
         key_pattern("fl1:disconnected")),
        (schema.NODES, _COPIES, key_pattern("fl1:node")),
    ),
    "store": RedisUser("fairlead store", _STORE_COMMANDS, (), ("*",)),
}  # fmt: skip
"""The users by the name that follows the prefix of their names."""
