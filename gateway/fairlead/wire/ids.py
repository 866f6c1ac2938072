"""Ids: which agent ids are valid, and how command ids are generated.

The API and the handling of hello check here every id that enters the system. This module is pure: time and randomness
are arguments.
"""

from __future__ import annotations

import re
import uuid
import zlib

from fairlead.errors import InvalidRequest

AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
"""Braces, spaces and colons are not allowed, because the id is used unchanged in Redis hash tags and in URLs."""


SHARDS = 64
"""The number of parts into which agents and their commands are divided. A command's id names the part of its agent: its
17th and 18th characters, which are two of its random digits, read as a number modulo 64."""


def check_agent_id(agent: str) -> str:
    """Return `agent`. Raises InvalidRequest if it is not a valid agent id."""
    if AGENT_ID.match(agent) is None:
        raise InvalidRequest(
            f"invalid agent id {agent[:140]!r}: expected 1 to 128 characters of A-Z a-z 0-9 . _ -, starting with a "
            "letter or digit",
            field="agent",
        )
    return agent


def check_command_id(command: str) -> str:
    """Return `command` in canonical form. Raises InvalidRequest if it is not a UUID."""
    try:
        return str(uuid.UUID(command))
    except ValueError as e:
        raise InvalidRequest(f"invalid command id {command[:64]!r}: expected a UUID", field="id") from e


def agent_shard(agent: str) -> int:
    return zlib.crc32(agent.encode()) % SHARDS


def command_shard(command: str) -> int:
    """The shard of the agent whose command has this id; 0 if it is not an id of a command."""
    try:
        return int(command[16:18], 16) % SHARDS
    except ValueError:
        return 0


def of_agent(id: str, agent: str) -> str:
    """The UUID `id`, changed so that it is the id of a command of `agent`."""
    return f"{id[:16]}{int(id[16:18], 16) // SHARDS * SHARDS + agent_shard(agent):02x}{id[18:]}"


def uuid7(now_ms: int, entropy: bytes) -> str:
    """A UUIDv7 (RFC 9562 §5.7) of a Unix time in milliseconds and 10 random bytes."""
    if len(entropy) != 10:
        raise ValueError(f"a UUIDv7 takes 10 random bytes, got {len(entropy)}")
    rand = int.from_bytes(entropy, "big")
    rand_a = rand & 0xFFF
    rand_b = (rand >> 12) & ((1 << 62) - 1)
    value = (now_ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
