"""The signature of one command: the terms that it covers, and the octets in which it travels.

The caller makes it from the terms of the command, the gateway carries it in `signature` and `cmd.sig`, and the agent
puts the command that arrived beside it and checks that the two are the same. Pure: time is an argument, and the
cryptography is in `keys`.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from fairlead.signing.errors import SignatureRejected
from fairlead.signing.hash_tree import STEP_BYTES, STEPS_LIMIT, root_of
from fairlead.signing.signed_octets import signed_octets

KIND: Final = "fairlead.command.v1"
RUN_KIND: Final = "fairlead.run.v1"
VERSION: Final = 1
RUN_VERSION: Final = 2
"""Of the signature of a run, which covers the commands of all its targets."""
KEY_ID_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64
_envelope = struct.Struct(f"!BB{KEY_ID_BYTES}sQQ{SIGNATURE_BYTES}s")
ENVELOPE_BYTES: Final = _envelope.size

Input: TypeAlias = Literal["none", "signed"]
"""Whether the command may be given input: none at all, or chunks each of which is signed."""
INPUTS: Final[tuple[Input, ...]] = ("none", "signed")
"""Each at its number in the envelope."""


@dataclass(frozen=True, slots=True)
class CommandTerms:
    """All that decides what an agent runs. Times are in Unix ms: the command was signed at `issued`, and after
    `expires` it must neither begin nor run."""

    agent: str
    id: str
    method: str
    payload: bytes
    """Exactly the octets that the agent receives; their SHA-256 is signed."""
    lane: str
    retry: str
    input: Input
    issued: int
    expires: int

    def to_sign(self, key_id: bytes) -> bytes:
        """The octets that the key with this id signs."""
        return command_octets(
            key_id, self.agent, self.id, self.method, hashlib.sha256(self.payload).digest(), self.lane, self.retry,
            self.input, self.issued, self.expires,
        )  # fmt: skip


def command_octets(key_id: bytes, *terms: bytes | str | int) -> bytes:
    """What is signed for one command: its terms as `CommandTerms` has them, with the digest of its payload."""
    return signed_octets(KIND, key_id, *terms)


def run_octets(key_id: bytes, root: bytes) -> bytes:
    """What is signed for a run: the root of the tree whose leaves are the octets of its commands."""
    return signed_octets(RUN_KIND, key_id, root)


@dataclass(frozen=True, slots=True)
class CommandSignature:
    """A signature with those of its terms that are nowhere else in the command."""

    key_id: bytes
    input: Input
    issued: int
    expires: int
    signature: bytes
    path: bytes | None = None
    """From the command to the root of its run, which is what is signed; None if the command itself is."""

    def covered(self, octets: bytes) -> bytes:
        """What the key must have signed, if these are the octets of the command."""
        return octets if self.path is None else run_octets(self.key_id, root_of(octets, self.path))

    def along(self, path: bytes) -> CommandSignature:
        """The signature of a run as that of one of its commands."""
        return replace(self, path=path)

    def pack(self) -> bytes:
        """The octets that travel: version, input, key id, issued, expires, signature, and the path of a run."""
        number, version = INPUTS.index(self.input), VERSION if self.path is None else RUN_VERSION
        packed = _envelope.pack(version, number, self.key_id, self.issued, self.expires, self.signature)
        return packed + (self.path or b"")


def unpack(octets: bytes) -> CommandSignature:
    """Read what `pack` wrote. Raises SignatureRejected for anything else."""
    path = octets[ENVELOPE_BYTES:]
    if len(octets) < ENVELOPE_BYTES or not _fits(octets[0], path):
        raise SignatureRejected(
            "signature_invalid",
            f"the signature of {len(octets)} octets has no known form: expected {ENVELOPE_BYTES} octets, the first of "
            f"which is {VERSION}, or {RUN_VERSION} and up to {STEPS_LIMIT} steps of {STEP_BYTES} octets behind them",
        )
    version, number, key_id, issued, expires, signature = _envelope.unpack(octets[:ENVELOPE_BYTES])
    if number >= len(INPUTS):
        raise SignatureRejected("signature_invalid", f"the signature names the kind of input {number}: expected 0 or 1")
    return CommandSignature(
        key_id, INPUTS[number], issued, expires, signature, None if version == VERSION else path
    )  # fmt: skip


def _fits(version: int, path: bytes) -> bool:
    if version == VERSION:
        return not path
    whole = len(path) % STEP_BYTES == 0 and len(path) <= STEPS_LIMIT * STEP_BYTES
    return version == RUN_VERSION and whole and max(path[::STEP_BYTES], default=0) <= 1
