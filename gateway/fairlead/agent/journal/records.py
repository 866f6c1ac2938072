"""The records of an agent's journal, and their encoding.

A record is a prefix of 12 bytes (the length of the body, the CRC-32 of the body, the CRC-32 of those eight bytes) and a
body in MessagePack; output and events are the link protocol's own messages. The prefix has a checksum of its own, so
that an incomplete last record can be distinguished from damage in the middle of the file. The former is normal after a
crash and loses nothing that was promised; after the latter, commands that were acknowledged may be lost. Pure: no I/O.
"""

from __future__ import annotations

import struct
import zlib
from typing import TypeAlias

import msgspec
from msgspec import Struct

from fairlead.wire.messages import Chunk, Cmd, Count, End, Event, Id

VERSION = 1


class Record(Struct, tag_field="t", omit_defaults=True, frozen=True, gc=False):
    """Base of the journal's own records. Their tags begin at 100: below are those of the protocol."""


class Header(Record, tag=100, frozen=True):
    """The first record. `journal` is the id by which the gateway recognizes this journal; it is lost together with the
    records. `created` is when that was (Unix ms); 0 in a journal of an older version, which knew no signed commands.
    """

    version: Count
    journal: Id
    agent: str
    created: Count = 0


class Accepted(Record, tag=101, frozen=True):
    """A command. `expiry` is its deadline by the wall clock, in Unix ms; `first` is the number of the first chunk that
    follows. `spent` is set if the command must not run again, because it has had output or input, or was already run a
    second time. `signed` is set if the command was signed: until when its id is remembered (Unix ms).
    """

    cmd: Cmd
    expiry: Count
    first: Count = 0
    spent: bool = False
    signed: Count = 0


class CommandClosed(Record, tag=102, frozen=True):
    """The gateway needs nothing more of this command; its id is remembered."""

    id: Id


class EventStored(Record, tag=103, frozen=True):
    """The gateway has stored this event."""

    id: Id


class RememberedId(Record, tag=104, frozen=True):
    """The id of a signed command that was accepted, and until when it must not be accepted again (Unix ms)."""

    id: Id
    until: Count


Entry: TypeAlias = Header | Accepted | CommandClosed | EventStored | RememberedId | Chunk | End | Event

_encode = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(Entry).decode
PREFIX_HEAD = struct.Struct("!II")
PREFIX_CHECK = struct.Struct("!I")
PREFIX = PREFIX_HEAD.size + PREFIX_CHECK.size


def frame(record: Entry) -> bytes:
    """The bytes of `record` in the file."""
    body = _encode(record)
    head = PREFIX_HEAD.pack(len(body), zlib.crc32(body))
    return head + PREFIX_CHECK.pack(zlib.crc32(head)) + body
