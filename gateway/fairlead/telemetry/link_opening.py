"""When each step of the opening of one link happened on this node.

Sessions keep these timestamps for the telemetry recorder: as a list until welcome, then packed, because spans are
made of them only if a trace of one of the link's commands is kept. They are nanoseconds of this machine's wall clock,
as spans require.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

OPENED, GREETED, CLAIMED, WELCOMED = 2, 3, 4, 5
"""Places in the list: the end of the upgrade, hello, the end of the claim, welcome. 0 and 1 are the beginning of the
upgrade request and its admission."""

_OPENING = struct.Struct("<Q5I")


def pack_opening(stamps: Sequence[int]) -> bytes:
    """Pack the timestamps into bytes: 61 bytes in memory."""
    start = stamps[0]
    # A clock that was changed in between, even by an hour, must not cost the agent its link.
    return _OPENING.pack(start, *(min(max(0, stamp - start) // 1000, 0xFFFFFFFF) for stamp in stamps[1:]))


def unpack_opening(packed: bytes) -> list[int]:
    start, *after = _OPENING.unpack(packed)
    return [start, *(start + micros * 1000 for micros in after)]
