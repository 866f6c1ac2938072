"""The four types of a Redis reply, and the functions that convert a reply into the type that the caller expects.

All code that submits commands calls them. They never guess: for a reply of another type they raise a `StoreError` that
shows it, because a silent None here would become a wrong lease elsewhere. The connection uses RESP2 on purpose: hashes
arrive as flat lists, exactly as a Lua script returns them, so the same functions read both.
"""

from __future__ import annotations

from typing import TypeAlias

from fairlead.store.errors import StoreError

Reply: TypeAlias = "bytes | int | list[Reply] | None"
Arg: TypeAlias = "bytes | str | int | float"


def _wrong(reply: Reply, wanted: str) -> StoreError:
    return StoreError(f"unexpected reply {reply!r:.120} of the server: expected {wanted}", "SHAPE")


def integer(reply: Reply) -> int:
    """An integer, which the server may have sent as an integer or as a string of digits."""
    if isinstance(reply, int):
        return reply
    if isinstance(reply, bytes):
        try:
            return int(reply)
        except ValueError as e:
            raise _wrong(reply, "an integer") from e
    raise _wrong(reply, "an integer")


def octets(reply: Reply) -> bytes:
    if isinstance(reply, bytes):
        return reply
    raise _wrong(reply, "a string")


def text(reply: Reply) -> str:
    return octets(reply).decode()


def items(reply: Reply) -> list[Reply]:
    if isinstance(reply, list):
        return reply
    raise _wrong(reply, "a list")


def table(reply: Reply) -> dict[bytes, bytes]:
    """A hash, from a flat list of fields and values such as the reply to HGETALL."""
    flat = items(reply)
    if len(flat) % 2:
        raise _wrong(reply, "a list of fields and values")
    return {octets(flat[i]): octets(flat[i + 1]) for i in range(0, len(flat), 2)}
