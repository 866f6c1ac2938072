"""Ids: which agent ids are valid, and how command ids are generated.

The API and the handling of hello check here every id that enters the system. This module is pure: time and randomness
are arguments.
"""

from __future__ import annotations

import re
import uuid

from fairlead.errors import InvalidRequest

AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
"""Braces, spaces and colons are not allowed, because the id is used unchanged in Redis hash tags and in URLs."""

DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def check_agent_id(agent: str) -> str:
    """Return `agent`. Raises InvalidRequest if it is not a valid agent id."""
    if AGENT_ID.match(agent) is None:
        raise InvalidRequest(
            f"invalid agent id {agent[:140]!r}: expected 1 to 128 characters of A-Z a-z 0-9 . _ -, starting with a "
            "letter or digit",
            field="agent",
        )
    return agent


def check_digest(digest: str) -> str:
    """Return `digest`. Raises InvalidRequest if it is not a SHA-256 in lower-case hexadecimal."""
    if DIGEST.match(digest) is None:
        raise InvalidRequest(
            f"invalid digest {digest[:80]!r}: expected a SHA-256 as 64 hexadecimal digits in lower case", field="digest"
        )
    return digest


def check_command_id(command: str) -> str:
    """Return `command` in canonical form. Raises InvalidRequest if it is not a UUID."""
    return _canonical("command", command, "id")


def check_run_id(run: str) -> str:
    """Return `run` in canonical form. Raises InvalidRequest if it is not a UUID."""
    return _canonical("run", run, "run")


def check_schedule_id(schedule: str) -> str:
    """Return `schedule` in canonical form. Raises InvalidRequest if it is not a UUID."""
    return _canonical("schedule", schedule, "schedule")


def _canonical(kind: str, given: str, field: str) -> str:
    try:
        return str(uuid.UUID(given))
    except ValueError as e:
        raise InvalidRequest(f"invalid {kind} id {given[:64]!r}: expected a UUID", field=field) from e


def uuid7_ms(uuid: str) -> int:
    """The Unix time in milliseconds of a UUIDv7."""
    return int(uuid[:8] + uuid[9:13], 16)


def uuid7(now_ms: int, entropy: bytes) -> str:
    """A UUIDv7 (RFC 9562 §5.7) of a Unix time in milliseconds and 10 random bytes."""
    if len(entropy) != 10:
        raise ValueError(f"a UUIDv7 takes 10 random bytes, got {len(entropy)}")
    time, digits = f"{now_ms & ((1 << 48) - 1):012x}", entropy.hex()
    # The version is 7, and the two highest bits of the fourth group are the variant, 0b10.
    return f"{time[:8]}-{time[8:]}-7{digits[17:]}-{'89ab'[entropy[0] & 3]}{digits[2:5]}-{digits[5:17]}"
