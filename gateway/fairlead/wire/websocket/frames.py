"""The frames of RFC 6455: opcodes, encoding, masks, and the payloads of close frames and of compressed messages.

The connections in `fairlead.carrier` write with it, and `frame_reader` reads with it. Nothing here does I/O, reads a
clock or draws a random number: a client's mask keys are arguments.

permessage-deflate (RFC 7692) is offered only without context takeover, which keeps zero bytes between messages.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final

try:
    from websockets.speedups import apply_mask as apply_mask
except ImportError:  # a platform without a compiled wheel: ten times slower but correct

    def apply_mask(data: bytes, mask: bytes) -> bytes:  # type: ignore[misc]  # the signature is narrower, on purpose
        """Compute `data` XOR the repeated `mask` as one operation on big integers."""
        size = len(data)
        key = (mask * (size // 4 + 1))[:size]
        return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


FIN: Final = 0x80
RSV1: Final = 0x40
CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
CONTROL: Final = 0x8
"""The bit that control opcodes have and data opcodes lack."""

MAX_CONTROL: Final = 125
"""The maximum size of a control frame's payload (RFC 6455 §5.5)."""

SHORT: Final = 125
"""The size of a payload up to which a frame has its shortest form (RFC 6455 §5.2)."""

COMPRESS_ABOVE: Final = 125
"""The size above which a payload is compressed: smaller ones save too little to justify the processor time."""

# RFC 6455 §7.4.1 and the IANA registry; 1004, 1005, 1006 and 1015 must not appear on the wire.
_CLOSE_CODES: Final = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})

_LENGTH_16: Final = Struct("!BBH").pack
_LENGTH_64: Final = Struct("!BBQ").pack


def encode(first: int, payload: bytes, mask: bytes = b"") -> bytes:
    """Encode one frame. `first` is FIN, RSV1 and the opcode; a client passes the four random bytes of `mask`."""
    size = len(payload)
    if not mask:
        if size < 126:
            return (first << 8 | size).to_bytes(2, "big") + payload
        return (_LENGTH_16(first, 126, size) if size < 65536 else _LENGTH_64(first, 127, size)) + payload
    if size < 126:
        head = (first << 8 | 0x80 | size).to_bytes(2, "big")
    else:
        head = _LENGTH_16(first, 254, size) if size < 65536 else _LENGTH_64(first, 255, size)
    return head + mask + apply_mask(payload, mask)


def close_payload(code: int, reason: str = "") -> bytes:
    """The payload of a close frame; empty for 1005, "no code". A long reason is truncated between characters."""
    if code == 1005:
        return b""
    cut = reason.encode(errors="replace")[: MAX_CONTROL - 2]
    return code.to_bytes(2, "big") + cut.decode(errors="ignore").encode()


def is_close_code(code: int) -> bool:
    """Whether a peer may send `code` in a close frame."""
    return code in _CLOSE_CODES or 3000 <= code < 5000


def deflate(payload: bytes) -> bytes:
    """Compress one message without context. A window of 12 bits and memory level 5 take 7 µs per message, where the
    defaults of zlib take 98 µs."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -12, 5)
    return (compressor.compress(payload) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


def inflate(payload: bytes, limit: int) -> bytes | None:
    """Decompress one message; None if it is longer than `limit`. Raises zlib.error for invalid data."""
    # One byte above the limit distinguishes "exactly at the limit" from "there is more", whatever is left unread.
    message = zlib.decompressobj(-15).decompress(payload + b"\x00\x00\xff\xff", limit + 1)
    return message if len(message) <= limit else None
