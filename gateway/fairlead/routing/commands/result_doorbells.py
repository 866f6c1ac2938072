"""Results that an append has just stored, packed for a doorbell to those who follow the command.

The recorder packs them if they are small, and a reader unpacks them, so that it need not read them from Redis. They are
a copy of what is stored: a reader that does not have everything before them reads the store instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fairlead.fleet.command_record import AppendResult, CommandRecord, Result, ResultPage, StoredEnd, Target
from fairlead.fleet.schema import TargetState
from fairlead.store.reply import Arg
from fairlead.telemetry.command_timing import CommandOrigin

MOST_BYTES = 4096
"""Of payloads that a doorbell carries. More is read from Redis, where it costs little beside its own size."""
_NOT_TOLD = CommandOrigin("", "", 0, 0)
_STATES = {state.value: state for state in TargetState}


class _Added(msgspec.Struct, array_like=True, frozen=True):
    agent: str
    first: int
    """The offset of the first of `results`, which are (number of the chunk, kind, payload)."""
    results: list[tuple[int, str, bytes]]
    state: str = ""
    """The state in which the command has ended, "" if it goes on."""
    next: int = 0
    ending: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Added).decode
_decode_ending = msgspec.msgpack.Decoder(StoredEnd).decode


def pack_added(agent: str, steps: Sequence[Arg], stored: AppendResult) -> bytes:
    """What the append of `steps` has stored; b"" if it is too much, or has to be read from Redis."""
    results: list[tuple[int, str, bytes]] = []
    state, ending, size, at = "", b"", 0, 0
    while at < len(steps):
        if steps[at] == "c":
            n, kind, payload = steps[at + 1 : at + 4]
            assert isinstance(n, int)
            assert isinstance(kind, str)
            assert isinstance(payload, bytes)
            results.append((n, kind, payload))
            size += len(payload)
            at += 4
        elif steps[at] == "e":
            blob = steps[at + 3]
            assert isinstance(blob, bytes)
            state, ending = stored.state, blob
            size += len(blob)
            break
        else:
            at += 1
    if stored.seq < 0 or len(results) != stored.added or size > MOST_BYTES:
        return b""
    return _encode(_Added(agent, stored.seq - stored.added, results, state, stored.next, ending))


def page_of(command: str, at: int, told: Iterable[bytes]) -> ResultPage | None:
    """The page of results from offset `at` on that doorbells have told; None if it has to be read from Redis.

    Of the record of a command that has ended it has what an end shows, and nothing else.
    """
    results: list[Result] = []
    ended: CommandRecord | None = None
    for packed in told:
        try:
            added = _decode(packed)
        except msgspec.DecodeError:
            return None  # from a node of another version
        known = at + len(results) - added.first
        if not 0 <= known <= len(added.results):
            if known > 0 and not added.state:
                continue
            return None
        results += [Result(added.first + i, added.agent, *added.results[i]) for i in range(known, len(added.results))]
        if added.state:
            state, ending = _STATES[added.state], _decode_ending(added.ending)
            target = Target(added.agent, state, 0, added.next, 0, ending)
            seq = added.first + len(added.results)
            ended = CommandRecord(command, added.agent, _NOT_TOLD, "", 0, 0, 0, False, seq, False, [target])
    if not results and ended is None:
        return None
    return ResultPage(at + len(results), results, ended, -1)
