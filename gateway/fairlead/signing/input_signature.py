"""Signed input: each chunk of a signed command's input carries a signature of its own.

So a gateway can neither write into a shell that a signed command has opened, nor end the input early and have half of
it taken for all of it. A chunk is one octet (1 if it is the last one, otherwise 0), 64 octets of signature, and the
data. Pure: the cryptography is in `keys`.
"""

from __future__ import annotations

import hashlib
from typing import Final

from fairlead.signing.command_signature import SIGNATURE_BYTES
from fairlead.signing.errors import SignatureRejected
from fairlead.signing.signed_octets import signed_octets

KIND: Final = "fairlead.input.v1"
OVERHEAD: Final = 1 + SIGNATURE_BYTES


def input_to_sign(key_id: bytes, agent: str, command: str, n: int, last: bool, data: bytes) -> bytes:
    """The octets that are signed for input chunk `n` of `command`."""
    return signed_octets(KIND, key_id, agent, command, n, int(last), hashlib.sha256(data).digest())


def pack_input(last: bool, signature: bytes, data: bytes) -> bytes:
    """The payload of the chunk."""
    return bytes((last,)) + signature + data


def unpack_input(payload: bytes) -> tuple[bool, bytes, bytes]:
    """Whether the chunk is the last one, its signature and its data. Raises SignatureRejected."""
    if len(payload) < OVERHEAD or payload[0] > 1:
        raise SignatureRejected(
            "input_signature_missing",
            f"the input is not signed: expected {OVERHEAD} octets or more, the first of which is 0 or 1",
        )
    return payload[0] == 1, payload[1:OVERHEAD], payload[OVERHEAD:]
