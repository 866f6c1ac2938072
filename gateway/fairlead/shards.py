"""The shards into which Redis's keys of agents and their commands are divided, and how ids lead to them.

The schema makes keys of them, and whoever chooses a command's id makes it one of its agent. This module is pure.
"""

from __future__ import annotations

import zlib
from typing import Final

from fairlead.tenant import local_id

SHARDS: Final = 64
"""A command's id names the shard of its agent: its 17th and 18th characters, which are two of its random digits, read
as a number modulo 64."""


def agent_shard(agent: str) -> int:
    """The shard of an agent, whatever its tenant: whoever signs a command chooses its id by what it knows, which is the
    id without the tenant."""
    return zlib.crc32((local_id(agent) if agent[:1] == "/" else agent).encode()) % SHARDS


def command_shard(command: str) -> int:
    """The shard of the agent whose command has this id; 0 if it is not an id of a command."""
    try:
        return int(command[16:18], 16) % SHARDS
    except ValueError:
        return 0


def of_agent(id: str, agent: str) -> str:
    """The UUID `id`, changed so that it is the id of a command of `agent`."""
    return f"{id[:16]}{int(id[16:18], 16) // SHARDS * SHARDS + agent_shard(agent):02x}{id[18:]}"
