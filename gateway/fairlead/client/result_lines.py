"""Parses a stream of results: NDJSON, one result or event of the stream on each line.

Used by `command`, and `event_reader` for its split. It does no I/O of its own. A line that says that the stream cannot
continue is raised as the error of `fairlead.errors` that its code names."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import msgspec

from fairlead.client.models import Chunk, End, Failure
from fairlead.client.problem_details import error_class
from fairlead.errors import FairleadError, Unavailable

LINE_LIMIT = 4 << 20
"""The maximum length of a line in bytes, which is more than twice a message of 1 MiB in base64."""


@dataclass(frozen=True, slots=True)
class Started:
    """The first line of the answer to a post."""

    id: str
    state: str
    recorded: bool = False
    replayed: bool = False
    presence: str = "online"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Continuation:
    """This stream is over, but the command is not: request the rest from `offset` on, which also tells the gateway what
    was read.
    """

    offset: int


Line = Started | Chunk | End | Continuation


class _Line(msgspec.Struct):
    """Any line; its members tell which kind it is. `{}` keeps the connection alive."""

    id: str | None = None
    state: str = ""
    recorded: bool = False
    replayed: bool = False
    presence: str = "online"
    why: str | None = None
    offset: int | None = None
    agent: str = ""
    n: int = 0
    kind: str = ""
    text: str | None = None
    base64: str | None = None
    end: End | None = None
    error: Failure | None = None
    more: int | None = None


_decode = msgspec.json.Decoder(_Line).decode


async def lines_of(parts: AsyncIterator[bytes]) -> AsyncGenerator[Line]:
    """Raises FairleadError for a malformed line, and the error that a line reports."""
    async for raw in split_lines(parts):
        line = read(raw)
        if line is not None:
            yield line


async def split_lines(parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Lines at b"\\n" only: str.splitlines would also cut at U+2028, which JSON strings may hold."""
    rest = bytearray()
    async for part in parts:
        rest += part
        if b"\n" in part:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line.strip():
                    yield bytes(line)
        if len(rest) > LINE_LIMIT:
            raise FairleadError(f"a line of {len(rest)} bytes or more is too long: expected at most {LINE_LIMIT}")
    # A last line without a line end was cut off by a lost connection; the reader notices that no `end` came.


def read(raw: bytes) -> Line | None:
    """Parse one line; None for one that only keeps the connection alive."""
    try:
        line = _decode(raw)
        if line.end is not None:
            return line.end
        if line.more is not None:
            return Continuation(line.more)
        if line.offset is not None:
            if line.base64 is not None:
                data = base64.b64decode(line.base64, validate=True)
            else:
                data = (line.text or "").encode()
            return Chunk(line.offset, line.agent, line.n, line.kind, data)
    except (msgspec.MsgspecError, ValueError) as e:
        raise FairleadError(f"invalid line in the stream: {e} (are client and gateway of different versions?)") from e
    if line.error is not None:
        # The stream cannot continue, for now or at all.
        kind = error_class(line.error.code, Unavailable if line.error.temporary else FairleadError)
        raise kind(line.error.message, code=line.error.code)
    if line.id is None:
        return None
    return Started(line.id, line.state, line.recorded, line.replayed, line.presence, line.why or "")
