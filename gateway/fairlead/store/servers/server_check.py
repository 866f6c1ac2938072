"""Checks once, at the start of a node, whether the Redis server is suitable for a fleet.

`Node` calls it after the pipeliner has become available, and `fairlead redis check` uses it. A server that is too old
for our scripts stops the process.
For a server that may lose or evict data, the check only logs a warning that names the setting, because the operator of
that server may have reasons. It uses INFO instead of CONFIG GET, because managed Redis services refuse CONFIG GET.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.errors import ConfigError
from fairlead.store.answer import answers_or_errors
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, text
from fairlead.store.servers.confirmer import Durability
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

OLDEST = (7, 0)
"""The first version that accepts the `#!lua` line in scripts. All of our scripts have that line."""

WAITS_FOR_FILE = (7, 2)
"""The first version that has WAITAOF."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    product: str
    version: str
    compatible: str
    """The version of Redis that it is compatible with."""
    eviction: str
    append_only: bool

    @classmethod
    def parse(cls, info: str) -> ServerFacts:
        """Parse the reply to INFO."""
        found = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        compatible = found.get("redis_version", "0")
        return cls(
            product=found.get("server_name", "redis"),
            version=found.get("valkey_version", compatible),
            compatible=compatible,
            eviction=found.get("maxmemory_policy", "unknown"),
            append_only=found.get("aof_enabled") == "1",
        )

    @property
    def waits_for_file(self) -> bool:
        """Whether it can wait until its append-only file is on the disk."""
        return self.append_only and _numbers(self.compatible) >= WAITS_FOR_FILE

    def unfit(self) -> str:
        """Why no node can use the server; "" if nodes can."""
        if _numbers(self.compatible) >= OLDEST:
            return ""
        return f"has version {self.version}: expected Redis 7.0 or later, or any Valkey"

    def risks(self) -> Iterator[str]:
        """How the server may lose data, each with what to set there."""
        if self.eviction != "noeviction":
            yield (
                f"evicts keys when its memory is full (maxmemory-policy {self.eviction}): leases and commands would "
                "be lost; set maxmemory-policy noeviction there"
            )
        if not self.append_only:
            yield "keeps no append-only file: a restart of it loses acknowledged commands; set appendonly yes there"


async def check_server(store: Store, durability: Durability = Durability.LOCAL) -> ServerFacts:
    """Return facts about the server, or about one of several. Raises `ConfigError` if one is too old, or cannot give
    the `durability` that is wanted; logs a warning if one may lose data."""
    asked = store.submit_to_each("INFO", priority=Priority.CONTROL)
    answers = dict(zip(asked, await answers_or_errors(asked.values()), strict=True))
    away = [reply for reply in answers.values() if isinstance(reply, Exception)]
    if len(away) == len(answers):
        raise away[0] if away else store.last_error
    # A primary of a Cluster that is away keeps no node from starting.
    found = [_check(address, reply) for address, reply in answers.items() if not isinstance(reply, Exception)]
    if durability is Durability.FSYNC and not all(facts.waits_for_file for facts in found):
        raise ConfigError(
            "durability is fsync, but a server keeps no append-only file or is older than Redis 7.2: set appendonly "
            "yes there, or choose local or replicated"
        )
    return found[0]


def _check(address: str, reply: Reply) -> ServerFacts:
    facts = ServerFacts.parse(text(reply))
    if why := facts.unfit():
        raise ConfigError(f"{facts.product} at {address} {why}")
    for risk in facts.risks():
        logger.warning("%s at %s %s", facts.product, address, risk)
    return facts


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
