"""Reads the file of a journal back into its state. Pure: it is given the bytes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import msgspec

from fairlead.agent.journal.records import PREFIX, PREFIX_CHECK, PREFIX_HEAD, Header, decode_record
from fairlead.agent.journal.state import JournalState


@dataclass(frozen=True, slots=True)
class Replay:
    """The state after the first `end` bytes. `torn` is set if the last record is incomplete, `damage` says why the rest
    is not used.
    """

    state: JournalState
    end: int
    torn: bool = False
    damage: str = ""


def replay(data: bytes) -> Replay:
    """Read a whole file. Never raises: the result ends where the file cannot be read."""
    view, state, at = memoryview(data), JournalState(), 0
    while at < len(data):
        if len(data) - at < PREFIX:
            return Replay(state, at, torn=True)
        length, check = PREFIX_HEAD.unpack_from(data, at)
        body = view[at + PREFIX : at + PREFIX + length]
        after = at + PREFIX + length
        if zlib.crc32(view[at : at + PREFIX_HEAD.size]) != PREFIX_CHECK.unpack_from(data, at + PREFIX_HEAD.size)[0]:
            # The file system may have extended the file with zeros before it wrote the data.
            torn = not any(view[at + PREFIX :])
            return Replay(state, at, torn=torn, damage="" if torn else f"there is no record at byte {at}")
        if after > len(data):
            return Replay(state, at, torn=True)
        if zlib.crc32(body) != check:
            torn = not any(view[after:])
            return Replay(state, at, torn=torn, damage="" if torn else f"the record at byte {at} is damaged")
        try:
            record = decode_record(body)
            if (state.header is None) is not isinstance(record, Header):
                raise ValueError("the header is not the first record")
            state.apply(record, after - at)
        except (msgspec.MsgspecError, ValueError) as e:
            return Replay(state, at, damage=f"the record at byte {at} is invalid: {e}")
        at = after
    return Replay(state, at)
