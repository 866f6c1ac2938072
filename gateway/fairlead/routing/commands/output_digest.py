"""The digest of all that a command returned, by which the targets of a run are told apart, and how its program exited.

The recorder makes it of what an agent has just sent, and the owner of a run of what is stored. Both are the same: the
bytes of each kind count, however they were cut into chunks. It does no I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from fairlead.fleet.command_record import StoredEnd
from fairlead.store.reply import Arg

SENT_BYTES: Final = 64 << 10
"""Output of which the recorder makes a digest: more would hold the event loop for too long."""

_decode_ending = msgspec.msgpack.Decoder(StoredEnd).decode


class OutputDigest:
    __slots__ = ("_kinds", "size")

    def __init__(self) -> None:
        self._kinds: dict[str, list[bytes]] = {}
        self.size = 0
        """In bytes, without the payload of the end."""

    def add(self, kind: str, payload: bytes) -> None:
        self._kinds.setdefault(kind, []).append(payload)
        self.size += len(payload)

    def digest(self, ending: StoredEnd | None) -> str:
        """The digest, "" if nothing was returned."""
        payload = ending.payload if ending is not None else None
        if not self._kinds and not payload:
            return ""
        parts: list[bytes] = []
        for kind, payloads in sorted(self._kinds.items()):
            parts.append(b"%b %d\n" % (kind.encode(), sum(map(len, payloads))))
            parts += payloads
        parts.append(payload or b"")
        return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


class _Exit(msgspec.Struct):
    """What `exec` returns, among other members if another method has some."""

    exit_code: int = 0
    signal: int = 0


_decode_exit = msgspec.json.Decoder(_Exit).decode


def exit_code(payload: bytes | None) -> str:
    """`exit_3` or `signal_9`; "" for exit code 0, and for what no program returned."""
    # Most methods return neither: looking for the names costs a tenth of decoding.
    if payload is None or (b'"exit_code"' not in payload and b'"signal"' not in payload):
        return ""
    try:
        found = _decode_exit(payload)
    except msgspec.MsgspecError:
        return ""
    if found.signal:
        return f"signal_{found.signal}"
    return f"exit_{found.exit_code}" if found.exit_code else ""


class SentOutput(NamedTuple):
    """What is told of all that an agent has sent at once: its digest, and how its program exited (`exit_code`)."""

    digest: str
    exit: str


def output_of_steps(steps: Sequence[Arg]) -> SentOutput | None:
    """What the steps of one append hold, as `fleet.commands` makes them; None if that is not all that the agent has
    sent, or too much."""
    output, chunks, at = OutputDigest(), 0, 0
    while at < len(steps):
        step = steps[at]
        if step == "a":
            at += 1
            continue
        if steps[at + 1] != chunks or output.size > SENT_BYTES:
            return None
        if step == "e":
            ending = steps[at + 3]
            if not isinstance(ending, bytes):
                return None
            end = _decode_ending(ending)
            return SentOutput(output.digest(end), exit_code(end.payload))
        kind, payload = steps[at + 2], steps[at + 3]
        if not isinstance(kind, str) or not isinstance(payload, bytes):
            return None
        output.add(kind, payload)
        chunks += 1
        at += 4
    return None
