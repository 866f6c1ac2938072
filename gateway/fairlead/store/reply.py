"""The four shapes of a server's reply, and the readers that turn one into what the caller expects.

Called by everybody who submits commands. They never guess: a reply of another shape is a `StoreError` that
shows it, because a silent None here becomes a wrong lease elsewhere. The connection speaks RESP2 on purpose:
hashes come as flat lists, exactly as a Lua script returns them, so one set of readers serves both.
"""

from __future__ import annotations

from typing import TypeAlias

from fairlead.store.errors import StoreError

Reply: TypeAlias = "bytes | int | list[Reply] | None"
Arg: TypeAlias = "bytes | str | int | float"


def _wrong(reply: Reply, wanted: str) -> StoreError:
    return StoreError(f"reply {reply!r:.120} of the server is not {wanted}", "SHAPE")


def integer(reply: Reply) -> int:
    """An integer, whether the server sent it as one or as digits."""
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
    """A hash: HGETALL's flat list of fields and values."""
    flat = items(reply)
    if len(flat) % 2:
        raise _wrong(reply, "a list of fields and values")
    return {octets(flat[i]): octets(flat[i + 1]) for i in range(0, len(flat), 2)}
