"""A line of the audit log: JSON with a sequence number, the hash of the line before it, and its own hash at its end.

The hash is the SHA-256 of the line without the member `hash`, so a line vouches for all lines before it. It is pure.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

FIRST: Final = "0" * 64
"""What the first line of a chain names as the hash before it."""
RECOVERED: Final = "auditRecovered"
"""The action of the line that a node writes when the log does not end where it should."""
LINE_LIMIT: Final = 16 << 10
"""Bytes; the longest line that a node writes has some 4 KB."""
_TAIL = b',"hash":"'


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is recorded: who (`subject`, and `issuer` of its credential), what (`action` is the operation of the API;
    `digest` is that of the payload), whom, and the outcome: allowed or denied."""

    subject: str
    issuer: str
    action: str
    outcome: str
    reason: str = ""
    method: str = ""
    digest: str = ""
    agent: str = ""
    selector: str = ""
    count: int | None = None
    """How many agents, tokens or lines were shown."""
    command: str = ""
    run: str = ""
    detail: str = ""
    trace: str = ""


class AuditLine(AuditEvent, frozen=True, omit_defaults=True, kw_only=True):
    """An event in its place in the chain."""

    seq: int
    time: str
    node: str
    prev: str
    hash: str = ""


class Head(NamedTuple):
    """The last line of a chain."""

    seq: int = 0
    hash: str = FIRST

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"

    def padded(self) -> bytes:
        """The text with a line end, always of the same length, so that one write replaces it."""
        return f"{self.seq:018d}:{self.hash}\n".encode()

    @classmethod
    def parse(cls, text: str) -> Head | None:
        """None for a text that is no head."""
        seq, colon, hash = text.strip().partition(":")
        if not colon or not seq.isascii() or not seq.isdigit() or len(seq) > 18 or not _is_hash(hash):
            return None
        return cls(int(seq), hash)


class InvalidLine(Exception):
    """The text is no line of an audit log, or its hash is not that of its content."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditLine).decode


def chain(event: AuditEvent, head: Head, time: str, node: str) -> tuple[bytes, Head]:
    """The line for an event that follows `head`, with its line end, and the new head."""
    line = AuditLine(seq=head.seq + 1, time=time, node=node, prev=head.hash, **msgspec.structs.asdict(event))
    body = _encode(line)
    digest = hashlib.sha256(body).hexdigest()
    return body[:-1] + _TAIL + digest.encode() + b'"}\n', Head(line.seq, digest)


def parse_line(raw: bytes) -> AuditLine:
    """The line without its line end. Raises InvalidLine."""
    body, tail, rest = raw.rpartition(_TAIL)
    if not tail or len(rest) != 66 or not rest.endswith(b'"}'):
        raise InvalidLine("it has no hash at its end, so it was cut off or is not a line of an audit log")
    try:
        line = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidLine(f"it is not a line of an audit log ({e})") from e
    if hashlib.sha256(body + b"}").hexdigest() != line.hash:
        raise InvalidLine("its hash is not that of its content, so it was changed")
    return line


def _is_hash(text: str) -> bool:
    return len(text) == 64 and all(one in "0123456789abcdef" for one in text)
