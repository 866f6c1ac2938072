"""The signature of one command: the terms that it covers, and the 98 octets in which it travels.

The caller makes it from the terms of the command, the gateway carries it in `signature` and `cmd.sig`, and the agent
puts the command that arrived beside it and checks that the two are the same. Pure: time is an argument, and the
cryptography is in `keys`.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fairlead.signing.errors import SignatureRejected
from fairlead.signing.signed_octets import signed_octets

KIND: Final = "fairlead.command.v1"
VERSION: Final = 1
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
        return signed_octets(
            KIND, key_id, self.agent, self.id, self.method, hashlib.sha256(self.payload).digest(), self.lane,
            self.retry, self.input, self.issued, self.expires,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommandSignature:
    """A signature with those of its terms that are nowhere else in the command."""

    key_id: bytes
    input: Input
    issued: int
    expires: int
    signature: bytes

    def pack(self) -> bytes:
        """The octets that travel: version, input, key id, issued, expires, signature."""
        number = INPUTS.index(self.input)
        return _envelope.pack(VERSION, number, self.key_id, self.issued, self.expires, self.signature)


def unpack(octets: bytes) -> CommandSignature:
    """Read what `pack` wrote. Raises SignatureRejected for anything else."""
    if len(octets) != ENVELOPE_BYTES or octets[0] != VERSION:
        raise SignatureRejected(
            "signature_invalid",
            f"the signature is not one of version {VERSION}: expected {ENVELOPE_BYTES} octets, the first of which is "
            f"{VERSION}, got {len(octets)}",
        )
    _, number, key_id, issued, expires, signature = _envelope.unpack(octets)
    if number >= len(INPUTS):
        raise SignatureRejected("signature_invalid", f"the signature names the kind of input {number}: expected 0 or 1")
    return CommandSignature(key_id, INPUTS[number], issued, expires, signature)
