"""A line of the audit log: JSON with a sequence number, the hash of the line before it, and its own hash at its end.

The hash is the SHA-256 of the line without the member `hash`, so a line vouches for all lines before it. It is pure.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

FIRST: Final = "0" * 64
"""What the first line of a chain names as the hash before it."""
ENDED: Final = "commandEnded"
"""The action of the line that a node writes when a command has ended; its outcome is the final state."""
STARTED: Final = "nodeStarted"
"""The action of the line that a node writes when it has joined the fleet; `digest` is that of its file of roles."""
STOPPED: Final = "nodeStopped"
"""The action of the last line of a node that stops. One that was killed has none."""
ROLES_CHANGED: Final = "rolesChanged"
"""The action of the line that a node writes when other roles hold; `digest` is that of the file."""
ISSUERS_CHANGED: Final = "issuersChanged"
LINK_ISSUERS_CHANGED: Final = "linkIssuersChanged"
"""The actions of the lines that a node writes when it has read its issuers of users or of agents again."""
CLIENT_AUTHORITIES_CHANGED: Final = "clientAuthoritiesChanged"
"""The action of the line that a node writes when other authorities or revocation lists of clients hold; `digest` is
that of both files, and `count` says how many links were closed because of them."""
LINKS_CLOSED: Final = "linksClosed"
"""The action of the line that a node writes when it has closed links because an issuer, its key or a tenant is not
trusted any more; `reason` says which, and `count` how many."""
DIRECTIVE: Final = "followDirective"
"""The action of the line that a node writes when it begins or ceases to do what a directive in Redis says, which the
operator has written: `reason` says which. A node cannot know who else has written to Redis."""
DRAINING: Final = "nodeDraining"
"""The action of the line that a node writes when it begins to move its links away, because it was told to stop."""
SINKS_CHANGED: Final = "sinksChanged"
"""The action of the line that a node writes when it has read its file of event sinks; `digest` is that of the file."""
ENROLLED: Final = "enrolAgent"
"""The action of the line that a node writes before an agent that enrols gets its credential."""
SCHEDULED: Final = "scheduleStarted"
"""The action of the line that a node writes before it begins a run for a schedule, or when it begins none because the
caller may not run the method any more; `detail` has the schedule."""
JOINED: Final = "agentsJoined"
"""The action of the line that a node writes before agents join a run; `detail` has the first of them."""
RECOVERED: Final = "auditRecovered"
"""The action of the line that a node writes when the log does not end where it should."""
LINE_LIMIT: Final = 16 << 10
"""Bytes; the longest line that a node writes has some 4 KB."""
_TAIL = b',"hash":"'


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is recorded: who (`subject`, and `issuer` of its credential), what (`action` is the operation of the API;
    `digest` is that of the payload, or of a file), whom, and the outcome: allowed or denied, or how a command has
    ended."""

    subject: str
    issuer: str
    """The URL of a user's issuer, or the kind of credential."""
    action: str
    outcome: str
    reason: str = ""
    method: str = ""
    digest: str = ""
    content: str = ""
    """The SHA-256 of the content that agents get as their input."""
    agent: str = ""
    selector: str = ""
    count: int | None = None
    """How many agents, tokens or lines were shown."""
    command: str = ""
    run: str = ""
    approval: str = ""
    """The id of a request for an approval; the line of a post that has used one says in `detail` who approved."""
    credential: str = ""
    """The id of the service token that was presented."""
    detail: str = ""
    trace: str = ""
    tenant: str = ""


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
