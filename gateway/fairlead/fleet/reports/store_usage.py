"""What fills Redis: bytes by kind of key, and the agents, methods and commands that have the most of them.

`fairlead store` calls it. It looks at every key once, in pages, at the lowest priority, and asks Redis for the size of
each; of a kind with a great many keys it measures the first ones that Redis names, whose order is that of hashes, and
estimates the rest from them. Keys that come or go meanwhile may be missing or counted twice. It changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from fairlead.errors import FairleadError
from fairlead.fleet.command_record import CommandMetadata
from fairlead.fleet.schema import KEY_TYPES, cmd_key
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, octets, text
from fairlead.store.store import Store

COMMAND_KINDS: Final = ("fl2:cmd", "fl2:out", "fl2:in")
"""The kinds whose keys belong to one command."""
AGENT_KINDS: Final = ("fl2:agent", "fl2:open", "fl2:bound_key")
"""The kinds whose keys belong to one agent."""
FOREIGN: Final = "other"
"""The kind of all keys that are not Fairlead's."""
MEASURED: Final = 10_000
"""Keys of one kind that are measured at most. The sizes of rows of agents differ little."""
MEASURED_COMMANDS: Final = 200_000
"""The same for keys of commands, the largest of which are looked for."""
LARGEST: Final = 10
PAGE: Final = 500
"""Keys of one page: Redis takes a tenth of a millisecond for it."""

_about = msgspec.msgpack.Decoder(CommandMetadata).decode


@dataclass(slots=True)
class KindUsage:
    """The keys of one kind."""

    keys: int = 0
    measured: int = 0
    """Keys whose size Redis was asked for."""
    measured_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Of all keys, estimated from those that were measured."""
        return self.measured_bytes * self.keys // self.measured if self.measured else 0


@dataclass(slots=True)
class StoreUsage:
    """Sizes in bytes. `agents` and `methods` have what belongs to them and to their commands."""

    used: int
    """What Redis uses in all, with its own overhead; in a Cluster, all primaries together."""
    limit: int
    """Its `maxmemory`; 0 if it has none."""
    kinds: dict[str, KindUsage] = field(default_factory=dict)
    """By the part of the key before its hash tag, or `other`."""
    agents: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    owners: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Agent and method of the largest commands."""


async def read_usage(store: Store, progress: Callable[[int, int], None] = lambda seen, keys: None) -> StoreUsage:
    """Look at all keys. `progress` is called after each page with the keys so far and the number of all. Raises
    BusUnavailable, and StoreError if the server does not allow MEMORY or SCAN.
    """
    usage = StoreUsage(0, 0)
    for memory in store.submit_to_each("INFO", "memory", priority=Priority.BACKGROUND).values():
        info = dict(line.split(":", 1) for line in text(await memory).splitlines() if ":" in line)
        usage.used += int(info["used_memory"])
        usage.limit += int(info.get("maxmemory", 0))
    sizes = store.submit_to_each("DBSIZE", priority=Priority.BACKGROUND)
    total, seen = sum([integer(await size) for size in sizes.values()]), 0
    for address in sizes:
        async for page in _pages(store, address):
            seen += len(page)
            measured = [key for key in page if _count(usage, key)]
            for key, size in zip(measured, await _sizes(store, measured), strict=True):
                _add(usage, key, size)
            progress(seen, max(seen, total))
    await _attribute(store, usage)
    return usage


def kind_of(key: str) -> str:
    kind = key.partition(":{")[0]
    return kind if kind in KEY_TYPES else FOREIGN


def _count(usage: StoreUsage, key: str) -> bool:
    """Count a key. Returns whether it is to be measured."""
    name = kind_of(key)
    kind = usage.kinds.setdefault(name, KindUsage())
    kind.keys += 1
    return kind.measured + PAGE <= (MEASURED_COMMANDS if name in COMMAND_KINDS else MEASURED)


def _add(usage: StoreUsage, key: str, size: int | None) -> None:
    name = kind_of(key)
    kind = usage.kinds[name]
    if size is None:  # it is gone
        kind.keys -= 1
        return
    kind.measured += 1
    kind.measured_bytes += size
    if name in COMMAND_KINDS:
        usage.commands[_id(key)] += size
    elif name in AGENT_KINDS:
        usage.agents[_id(key)] += size


def _id(key: str) -> str:
    """The agent or the command of a key with the hash tag of a shard."""
    return key.partition("}:")[2]


async def _pages(store: Store, address: str) -> AsyncIterator[list[str]]:
    """The keys of one server."""
    cursor = b"0"
    while True:
        expected = 64 * PAGE
        reply = items(
            await store.submit_to(
                address, "SCAN", cursor, "COUNT", PAGE, priority=Priority.BACKGROUND, expected=expected
            )
        )
        cursor = octets(reply[0])
        keys = [octets(key).decode(errors="replace") for key in items(reply[1])]
        if keys:
            yield keys
        if cursor == b"0":
            return


async def _sizes(store: Store, keys: Sequence[str]) -> list[int | None]:
    """The size of each key; None for one that is gone."""
    replies = await _each(store, [("MEMORY", "USAGE", key) for key in keys])
    return [None if reply is None else integer(reply) for reply in replies]


async def _each(store: Store, commands: Sequence[tuple[str, ...]]) -> list[Reply]:
    """The reply to each command. Raises the error of the first one that has failed."""
    replies = await store.submit_each(commands, priority=Priority.BACKGROUND) if commands else []
    found: list[Reply] = []
    for reply in replies:
        if isinstance(reply, FairleadError):
            raise reply
        found.append(reply)
    return found


async def _attribute(store: Store, usage: StoreUsage) -> None:
    """Add the size of each command to its agent and its method."""
    largest = {command for command, _ in usage.commands.most_common(LARGEST)}
    for page in _in_pages(list(usage.commands)):
        for command, reply in zip(
            page, await _each(store, [("HGET", cmd_key(command), "about") for command in page]), strict=True
        ):
            if reply is None:
                continue  # its record has expired meanwhile
            about = _about(octets(reply))
            usage.agents[about.agent] += usage.commands[command]
            usage.methods[about.method] += usage.commands[command]
            if command in largest:
                usage.owners[command] = about.agent, about.method


def _in_pages(commands: Sequence[str]) -> Iterable[Sequence[str]]:
    return (commands[begin : begin + PAGE] for begin in range(0, len(commands), PAGE))
