"""The octets that a signature covers: an encoding in which no two different contents are the same octets.

`command_signature` and `input_signature` use it. Each field is preceded by its length, the first field names what is
signed (so that a signature of one kind is never valid as another kind), and the number of fields of each kind is fixed.
Pure: it knows neither keys nor clocks.
"""

from __future__ import annotations

import struct

_length = struct.Struct("!I").pack
_integer = struct.Struct("!Q").pack


def signed_octets(kind: str, *fields: bytes | str | int) -> bytes:
    """Encode `fields` under the domain `kind`: text as UTF-8, an integer as eight octets, the highest first."""
    parts: list[bytes] = []
    for one in (kind, *fields):
        octets = one if isinstance(one, bytes) else one.encode() if isinstance(one, str) else _integer(one)
        parts += (_length(len(octets)), octets)
    return b"".join(parts)
