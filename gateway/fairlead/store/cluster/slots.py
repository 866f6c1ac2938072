"""The hash slots of keys: where a call goes, and where to put what must be on two primaries. This module is pure."""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from fairlead.store.reply import Arg

KEYLESS: Final = frozenset({"PING", "INFO", "TIME", "DBSIZE", "SCAN", "CLUSTER", "CONFIG", "CLIENT", "SCRIPT", "WAIT",
                            "WAITAOF", "ROLE", "FLUSHALL"})  # fmt: skip
SECOND: Final = frozenset({"MEMORY", "XINFO", "OBJECT"})
"""Commands whose second argument is the key; the first one is a subcommand."""

NEAR: Final = 512
"""How far, in slots, the tag may be from the opposite side of all slots. Some sixteen tags are tried, at 1 µs each."""


def slot_of(key: bytes | str) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def key_of(command: tuple[Arg, ...]) -> bytes | str | None:
    """The first key of a command; None if it has none, and any server may answer it."""
    name = command[0]
    if name in KEYLESS:
        return None
    key = command[2] if name in SECOND else command[1] if len(command) > 1 else None
    return key if isinstance(key, bytes | str) else None


@lru_cache(maxsize=4_096)
def opposite(tag: str) -> str:
    """A tag whose slot is half of all slots away from that of `tag`, so that among primaries with equal ranges of slots
    another one has it. It does not depend on who has which slot, so all nodes find the same."""
    half = REDIS_CLUSTER_HASH_SLOTS // 2
    wanted = (key_slot(tag.encode()) + half) % REDIS_CLUSTER_HASH_SLOTS
    for number in count():
        found = f"{tag}/{number}"
        away = (key_slot(found.encode()) - wanted + half) % REDIS_CLUSTER_HASH_SLOTS - half
        if abs(away) <= NEAR:
            return found
    raise AssertionError("every slot has tags")
