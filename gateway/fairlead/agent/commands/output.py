"""Encodes what a handler yields and returns as the kinds and bytes of the protocol.

Used where the handler runs: on the event loop, in a thread or in a child process. Bytes and text may be split anywhere.
A row is one JSON value that its reader takes as a whole, so a row that is too large is an error of the handler.
"""

from __future__ import annotations

import re

import msgspec

from fairlead.agent.errors import CommandError

ROW = "row"
KIND = re.compile(r"[a-z][a-z0-9_.-]{0,63}\Z")


def octets(kind: str, data: bytes | str, limit: int) -> bytes:
    """The bytes of `data` for chunks of `kind`, which have at most `limit` bytes each.

    Raises CommandError for a row that does not fit one chunk, ValueError for an illegal kind.
    """
    if KIND.match(kind) is None:
        raise ValueError(f"invalid kind {kind[:70]!r}: expected {KIND.pattern}")
    made = data.encode() if isinstance(data, str) else bytes(data)
    if kind == ROW and len(made) > limit:
        raise CommandError("handler_failed", f"row of {len(made)} bytes exceeds max {limit}: yield smaller rows")
    return made


def item(value: object) -> tuple[str, bytes | str]:
    """Kind and data of one value that a generator yielded: bytes and str are output, anything else is a row."""
    if isinstance(value, bytes | bytearray | memoryview):
        return "stdout", bytes(value)
    if isinstance(value, str):
        return "stdout", value
    return ROW, to_json(value)


def to_json(value: object) -> bytes:
    """`value` as UTF-8 JSON. Raises CommandError when it cannot be encoded."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as e:
        raise CommandError(
            "handler_failed", f"the handler's {type(value).__name__} cannot be encoded as JSON: {e}"
        ) from e


def result(value: object) -> bytes:
    """The payload of an `end` message; empty for None."""
    return b"" if value is None else to_json(value)
