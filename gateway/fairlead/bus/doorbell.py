"""Doorbells: what one node tells another. Ids only, never content; the truth stands in Redis.

Made by `routing` and the inbox, heard by `routing`. A doorbell says "look there", so losing one costs time (a
sweep or the next doorbell finds the same), hearing it twice costs a look, and no order between them matters.
Many travel in one stream entry, as one MessagePack list of short tagged lists. Pure: no I/O, no clock. A kind
this version does not know is skipped, because during an upgrade newer nodes ring older ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, TypeAlias

import msgspec

MAX_PER_ENTRY = 1_000
"""About 60 KB with the usual ids: one entry stays a small command for Redis and under 1 ms of handling."""


class CommandQueued(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To the agent's node: a command is open for your agent. `at`: when it was rung (ns), for traces; 0 untold."""

    agent: str
    command: str
    at: int = 0


class ResultsAdded(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """To a follower's node: the results of this command have grown."""

    command: str


class LinkSuperseded(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """To the agent's node: close this link, if it still is of this generation."""

    agent: str
    gen: int
    close_code: int


class CancelRequested(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """To the agent's node: the caller gives this command up, or it is over. `why`: the word for `cancel.why`."""

    agent: str
    command: str
    why: str = "cancelled"


class InputAdded(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """To the agent's node: input has arrived for this command."""

    agent: str
    command: str


class Canary(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """From a node to itself, through Redis: do I still hear?"""

    token: str


class MembershipChanged(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """To all nodes: one has come or gone, read the table of nodes now and not at your next beat."""


class ResultsConsumed(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """To the agent's node: the reader of this command's results has come on, so its agent may send more."""

    agent: str
    command: str


class LinkStatsRequested(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """To the agent's node: how is this link doing? `asker` is the lease name to ring when it is written down."""

    agent: str
    asker: str


class LinkStatsWritten(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """To whoever asked: how this agent's link is doing stands in Redis now."""

    agent: str


class WorstLinksRequested(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """To every node: which of your links are the worst, by this measure? `asker` is the lease name to ring then."""

    asker: str
    by: str


class WorstLinksWritten(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """To whoever asked: the worst links of that node by this measure stand in Redis now."""

    lease: str
    by: str


Doorbell: TypeAlias = (
    CommandQueued
    | ResultsAdded
    | LinkSuperseded
    | CancelRequested
    | InputAdded
    | Canary
    | MembershipChanged
    | ResultsConsumed
    | LinkStatsRequested
    | LinkStatsWritten
    | WorstLinksRequested
    | WorstLinksWritten
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[Doorbell]] = msgspec.msgpack.Decoder(
    Annotated[list[Doorbell], msgspec.Meta(max_length=MAX_PER_ENTRY)]
)
_raw_decoder: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(
    Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_PER_ENTRY)]
)
_one_decoder: msgspec.msgpack.Decoder[Doorbell] = msgspec.msgpack.Decoder(Doorbell)


def encode(doorbells: Sequence[Doorbell]) -> bytes:
    if len(doorbells) > MAX_PER_ENTRY:
        raise ValueError(f"{len(doorbells)} doorbells in one entry, the limit is {MAX_PER_ENTRY}")
    return _encoder.encode(doorbells)


def decode(payload: bytes) -> list[Doorbell]:
    """The doorbells of one entry that this version understands; of bytes that are no entry at all, none."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError:
        return list(_understood(payload))


def _understood(payload: bytes) -> Iterator[Doorbell]:
    try:
        raws = _raw_decoder.decode(payload)
    except msgspec.DecodeError:
        return
    for raw in raws:
        try:
            yield _one_decoder.decode(raw)
        except msgspec.DecodeError:
            continue


def in_entries(doorbells: Iterable[Doorbell]) -> Iterator[list[Doorbell]]:
    """Cut into lists that fit one entry each."""
    remaining = iter(doorbells)
    while entry := list(islice(remaining, MAX_PER_ENTRY)):
        yield entry
