"""Checks once, at the start of a node, whether the Redis server is suitable for a fleet.

`Node` calls it after the pipeliner has become available. A server that is too old for our scripts stops the process.
For a server that may lose or evict data, the check only logs a warning that names the setting, because the operator of
that server may have reasons. It uses INFO instead of CONFIG GET, because managed Redis services refuse CONFIG GET.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fairlead.errors import ConfigError
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import text

logger = logging.getLogger(__name__)

OLDEST = (7, 0)
"""The first version that accepts the `#!lua` line in scripts. All of our scripts have that line."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    product: str
    version: str
    eviction: str
    append_only: bool


async def check_server(pipeliner: Pipeliner) -> ServerFacts:
    """Return facts about the server. Raises `ConfigError` if it is too old; logs a warning if it may lose data."""
    info = dict(line.split(":", 1) for line in text(await pipeliner.submit("INFO")).splitlines() if ":" in line)
    # Valkey reports its own version and the Redis version that it is compatible with.
    compatible = info.get("redis_version", "0")
    facts = ServerFacts(
        product=info.get("server_name", "redis"),
        version=info.get("valkey_version", compatible),
        eviction=info.get("maxmemory_policy", "unknown"),
        append_only=info.get("aof_enabled") == "1",
    )
    if _numbers(compatible) < OLDEST:
        raise ConfigError(
            f"{facts.product} at {pipeliner.address} has version {facts.version}: "
            "expected Redis 7.0 or later, or any Valkey"
        )
    if facts.eviction != "noeviction":
        logger.warning(
            "%s at %s evicts keys when its memory is full (maxmemory-policy %s): leases and commands would "
            "be lost; set maxmemory-policy noeviction there",
            facts.product,
            pipeliner.address,
            facts.eviction,
        )
    if not facts.append_only:
        logger.warning(
            "%s at %s keeps no append-only file: a restart of it loses acknowledged commands; set appendonly yes there",
            facts.product,
            pipeliner.address,
        )
    return facts


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
