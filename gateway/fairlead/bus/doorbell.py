"""Doorbells: small notifications from node to node. They carry ids, and copies of what is small: a command, results
that were just stored, and of a target of a run how it ended. The truth is in Redis.

`routing` and the inbox create them, and `routing.doorbells` handles them. A doorbell says that there is something to
fetch. So a lost doorbell costs time (a sweep or the next doorbell finds the same), a repeated one costs one look-up,
and their order does not matter. One stream entry carries many doorbells as a MessagePack list of short tagged lists.
This module is pure: it does no I/O and reads no clock. Doorbells of an unknown kind are skipped, because newer nodes
ring older ones during an upgrade.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, TypeAlias

import msgspec

from fairlead.wire.messages import CommandRetry, Count, Id, Lane, Octets, Word

USUAL_BYTES = 64
"""The size of a doorbell that carries nothing."""
MAX_PER_ENTRY = 1_000
"""About 60 KB with ids of the usual length: one entry stays a small command for Redis and takes less than 1 ms."""


class CommandQueued(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To the agent's node: a command waits for your agent. `rung_at` (ns) is for traces; 0 if not known. One that is
    `bulk` gives way."""

    agent: str
    command: str
    rung_at: int = 0
    bulk: bool = False


class CommandOffered(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """To the agent's node: this command counts as sent on your link of generation `gen`, so send it without asking.

    `until` is the time (ms) after which this is but a `CommandQueued`, `began` when the request arrived and `rung_at`
    when this was rung (ns), both for traces. The rest is what the record says. It is passed on to the agent, so it has
    the bounds of `Cmd`.
    """

    agent: str
    command: Id
    gen: int
    until: int
    expires: Count
    method: Word
    payload: Octets
    lane: Lane
    retry: CommandRetry
    created: Count
    rung_at: int = 0
    traceparent: Annotated[str, msgspec.Meta(max_length=64)] = ""
    began: int = 0
    signature: Annotated[bytes, msgspec.Meta(max_length=256)] = b""
    content: Annotated[str, msgspec.Meta(max_length=256)] = ""


class ResultsAdded(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """To a follower's node: this command has new results, or has ended."""

    command: str


class LinkSuperseded(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """To the agent's previous node: a newer link owns the agent; close yours if it is of this generation or older."""

    agent: str
    gen: int
    close_code: int


class CancelRequested(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """To the agent's node: tell the agent to stop this command. `why` becomes the `why` of its `cancel` message."""

    agent: str
    command: str
    why: str = "cancelled"


class InputAdded(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """To the agent's node: this command has new input."""

    agent: str
    command: str


class Canary(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """From a node to itself through Redis: a test of whether its inbox still receives."""

    token: str


class MembershipChanged(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """To all nodes: a node has joined or left; read the table of nodes now, not with your next heartbeat."""


class ResultsConsumed(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """To the agent's node: a caller has read results of this command, so its agent may send more."""

    agent: str
    command: str


class LinkStatsRequested(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """To the agent's node: write the statistics of this link to Redis, then ring the node with the lease `asker`."""

    agent: str
    asker: str


class LinkStatsWritten(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The answer to `LinkStatsRequested`: the statistics of this agent's link are in Redis."""

    agent: str


class WorstLinksRequested(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """To every node: write your worst links by this measure to Redis, then ring the node with the lease `asker`."""

    asker: str
    by: str


class WorstLinksWritten(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The answer to `WorstLinksRequested`: the worst links of the node with this lease are in Redis."""

    lease: str
    by: str


class TargetEnded(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """To the owner of a run: the command of a target has ended like this, with output of this digest, and its program,
    if it was one, with this exit. It says what the record says, and spares ten thousand look-ups."""

    command: str
    state: str
    code: str
    digest: str
    exit: str | None = None
    """None if a node of an earlier version rang."""


class ResultsStored(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """To a follower's node: this command has these new results, and perhaps has ended (see `result_doorbells`)."""

    command: str
    added: bytes


Doorbell: TypeAlias = (
    CommandQueued
    | CommandOffered
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
    | TargetEnded
    | ResultsStored
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
    """Encode one stream entry. Raises ValueError for more than MAX_PER_ENTRY doorbells."""
    if len(doorbells) > MAX_PER_ENTRY:
        raise ValueError(f"{len(doorbells)} doorbells in one entry: expected at most {MAX_PER_ENTRY}")
    return _encoder.encode(doorbells)


def decode(payload: bytes) -> list[Doorbell]:
    """Decode one stream entry, without the doorbells that this version does not know; [] if the entry is malformed."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError:
        return list(_known(payload))


def _known(payload: bytes) -> Iterator[Doorbell]:
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
    """Split `doorbells` into lists that each fit into one entry. One that carries data counts as so many of its
    size."""
    entry: list[Doorbell] = []
    weight = 0
    for doorbell in doorbells:
        weighs = 1 + _carried(doorbell) // USUAL_BYTES
        if weight + weighs > MAX_PER_ENTRY and entry:
            yield entry
            entry, weight = [], 0
        entry.append(doorbell)
        weight += weighs
    if entry:
        yield entry


def _carried(doorbell: Doorbell) -> int:
    """The bytes of data that the doorbell carries."""
    kind = type(doorbell)
    if kind is ResultsStored:
        return len(doorbell.added)  # type: ignore[union-attr]  # `kind` is its exact type; isinstance costs 3×
    return len(doorbell.payload) if kind is CommandOffered else 0  # type: ignore[union-attr]
