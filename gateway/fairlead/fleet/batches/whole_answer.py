"""The steps of an append that are all of an agent's answer, as one: what most agents send, in one go.

An agent that does what is asked within a moment sends an ack, some output or none, and an end, which the recorder
stores together. `Commands` and `CommandBatches` ask here whether steps are such an answer, and store it with
answer.lua, which takes Redis half of what these steps take one by one. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.store.reply import Arg

FEW: Final = 16
"""Results that the record takes at most, as in append.lua."""
SMALL: Final = 1024
"""Bytes of results and end up to which nobody has to drop them before the record goes: KEPT_FROM in record.lua."""

_SHORT: Final = [bytes((0xA0 | size,)) for size in range(32)]
_END: Final = 5
"""How many arguments an end has; it is the last step."""


class WholeAnswer(msgspec.Struct, frozen=True):
    """`count` is the number of results. The others are fields of the record: `sum`, `few`, which are the packed results
    (empty if there are none), and `blob`, which is the packed end."""

    count: int
    sum: str
    few: bytes
    blob: bytes


def whole_answer(agent: str, steps: Sequence[Arg], limit: int) -> WholeAnswer | None:
    """The answer that `steps` are; None if they are not an answer that ended as `ok`, or have too many results or
    bytes, or more bytes of results than `limit` allows."""
    if len(steps) < _END or steps[-_END] != "e":
        return None
    at = 1 if steps[0] == "a" else 0
    count = size = 0
    few = [agent.encode()]
    while steps[at] == "c":
        _, n, kind, payload = steps[at : at + 4]
        if n != count or count == FEW or not isinstance(kind, str) or not isinstance(payload, bytes):
            return None
        few += (b"%d" % n, kind.encode(), payload)
        size += len(payload)
        count += 1
        at += 4
    _, total, state, blob, _ = steps[-_END:]
    if at != len(steps) - _END or total != count or state != "ok" or not isinstance(blob, bytes):
        return None
    if size + len(blob) > SMALL or size > limit:
        return None
    return WholeAnswer(count, f"0|{count}|{size}|0", _pack(few) if count else b"", blob)


def _pack(few: list[bytes]) -> bytes:
    """As cmsgpack packs strings, whatever octets they have: it knows no other type for octets."""
    count = len(few)
    parts = [bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2)]
    for one in few:
        size = len(one)
        if size < 32:
            parts.append(_SHORT[size])
        elif size < 256:
            parts.append(bytes((0xD9, size)))
        else:
            parts.append(b"\xda" + size.to_bytes(2))
        parts.append(one)
    return b"".join(parts)
