"""The incremental reader of RFC 6455 frames, for both roles.

The connections in `fairlead.carrier` inherit from `FrameReader`, so that the reader, the asyncio protocol and the
connection are one object; they override the hooks that handle each kind of frame. Nothing here does I/O or reads a
clock.

While no message is incomplete, a reader holds only `None`, so that a million idle links keep no buffers. The fragments
of a message are joined as they arrive, so that empty fragments, however many, take no memory. A reader can be told to
stop after a number of frames: it keeps the data that it has not parsed until `feed` is called again, if necessary
without data.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import ClassVar, Final

from fairlead.wire.websocket.frames import (
    BINARY,
    CONTINUATION,
    CONTROL,
    FIN,
    PING,
    PONG,
    RSV1,
    SHORT,
    TEXT,
    apply_mask,
    inflate,
    is_close_code,
)

# All valid first bytes, so that one look-up rejects reserved bits, reserved opcodes and fragmented control frames. RSV1
# is valid only on the first frame of a message.
_PLAIN: Final = frozenset({0x00, 0x01, 0x02, 0x80, 0x81, 0x82, 0x88, 0x89, 0x8A})
_DEFLATED: Final = _PLAIN | {0x41, 0x42, 0xC1, 0xC2}
_WHOLE_BINARY: Final = FIN | BINARY
"""The first byte of a binary message in one frame, which is not deflated."""


class _Partial:
    """The state between two reads: an incomplete frame, and the fragments of a message received so far."""

    __slots__ = ("first", "message", "need", "unread")

    def __init__(self) -> None:
        self.unread: bytearray | None = None
        self.need = 0  # `unread` need not be parsed again before it has this many bytes
        self.message: bytearray | None = None
        self.first = 0  # opcode and RSV1 of the first fragment


ALL: Final = -1
"""An argument of `feed`: read all complete frames."""
_ENDED: Final = _Partial()
"""The state of a reader that ignores all further data."""


class FrameReader(ABC):
    """The frame reader of one end. Subclasses override the hooks; `feed` itself never raises an exception."""

    __slots__ = ("_partial", "deflate")

    MASKED: ClassVar[bool] = True
    """Whether the peer's frames are masked: true on a server, false on a client (RFC 6455 §5.1)."""

    def __init__(self, deflate: bool = False) -> None:
        self._partial: _Partial | None = None
        self.deflate = deflate

    @property
    def max_message(self) -> int:
        """The longest accepted message, in bytes after decompression and at least `frames.SHORT`; a longer one is a
        violation with code 1009. A shorter message that comes alone is not compared with it."""
        return 1 << 20

    @abstractmethod
    def message_received(self, message: bytes | str) -> None:
        """Called with a whole message: bytes if it was binary, str if it was text."""

    @abstractmethod
    def ping_received(self, payload: bytes) -> None:
        """Called for a ping, which must be answered with a pong with the same payload."""

    def pong_received(self, payload: bytes) -> None:
        """Called for a pong, solicited or not."""
        return  # like any other byte, it has already been counted as a sign of life

    @abstractmethod
    def close_received(self, code: int, reason: str) -> None:
        """Called for the peer's close frame (code 1005 if it held none). Nothing is read after it."""

    @abstractmethod
    def violated(self, code: int, reason: str) -> None:
        """Called if the peer violated the protocol: close with `code`. Nothing is read after it."""

    def discard(self) -> None:
        """Ignore all further data, including the rest of the data that is being read."""
        self._partial = _ENDED

    @property
    def kept(self) -> int:
        """The bytes that are kept: of an incomplete message, and of data that has not been parsed yet."""
        partial = self._partial
        if partial is None:
            return 0
        return len(partial.unread or b"") + len(partial.message or b"")

    @property
    def unparsed(self) -> int:
        """The bytes of `kept` that have not been parsed yet or are the beginning of a frame."""
        partial = self._partial
        return 0 if partial is None or partial.unread is None else len(partial.unread)

    @property
    def wanted(self) -> int:
        """The bytes that the incomplete frame still lacks, as far as its header is known."""
        partial = self._partial
        return 0 if partial is None or partial.unread is None else partial.need - len(partial.unread)

    @property
    def keeps_frames(self) -> bool:
        """Whether `feed` would read more without new data, because it stopped after `most` frames."""
        partial = self._partial
        return partial is not None and partial.unread is not None and len(partial.unread) >= partial.need

    def keep(self, data: bytes) -> None:
        """Keep data that arrived, without parsing it."""
        partial = self._partial
        if partial is _ENDED:
            return
        if partial is None:
            self._partial = partial = _Partial()
        if partial.unread is None:
            partial.unread = bytearray()
            partial.need = 0
        partial.unread += data

    def feed(self, data: bytes, most: int = ALL) -> int:
        """Parse data that arrived, at most `most` frames, and call the hooks for everything that is complete. Returns
        the number of frames that were read.
        """
        partial = self._partial
        if partial is None:
            # The fast path for one whole message that came alone, which is nearly all of the traffic.
            if len(data) > 5 and 0x81 <= (first := data[0]) <= 0x82:
                second = data[1]
                size, start = second & 0x7F, 2
                if size > 125:
                    if size == 127 or not 126 <= (size := data[2] << 8 | data[3]) <= self.max_message:
                        return self._read(data, most)
                    start = 4
                if self.MASKED:
                    if second > 127 and len(data) == size + start + 4:
                        payload = apply_mask(data[start + 4 :], data[start : start + 4])
                        if first == 0x82:
                            self.message_received(payload)
                        else:
                            self._complete(first, payload)
                        return 1
                elif second < 127 and len(data) == size + start:
                    self._complete(first, data[start:])
                    return 1
        elif partial is _ENDED:
            return 0
        elif partial.unread is not None:
            partial.unread += data
            if len(partial.unread) < partial.need:
                return 0
            data = bytes(partial.unread)
            partial.unread = None
        return self._read(data, most)

    def _read(self, data: bytes, most: int) -> int:
        masked = self.MASKED
        position, available, count = 0, len(data), 0
        while True:
            if count == most:
                need = 0
                break
            need = 2
            if available - position < need:
                break
            first, second = data[position], data[position + 1]
            if first not in (_DEFLATED if self.deflate else _PLAIN):
                return self._violate(1002, f"illegal frame header 0x{first:02x}", count)
            if (second > 127) is not masked:
                return self._violate(1002, "masked frame from a server" if second > 127 else "unmasked frame", count)
            size = second & 0x7F
            key = position + 2
            if size > 125:
                if first & CONTROL:
                    return self._violate(1002, "control frame of more than 125 bytes", count)
                need = 4 if size == 126 else 10
                if available - position < need:
                    break
                key = position + need
                size = int.from_bytes(data[position + 2 : key], "big")
                # The RFC requires the shortest form of a length. The only use of a longer form is to make an inspecting
                # proxy read something different from us, so it is rejected, like the reserved top bit.
                if size < 126 or (need == 10 and (size < 65536 or size >> 63)):
                    return self._violate(1002, f"frame length {size} not in its shortest form", count)
            # A frame of up to SHORT bytes that begins a message fits into every limit.
            if (size > SHORT or self._partial is not None) and size > self._room() and not first & CONTROL:
                return self._violate(1009, f"message exceeds {self.max_message} bytes", count)
            body = key + 4 if masked else key
            end = body + size
            need = end - position
            if end > available:
                break
            position = end
            count += 1
            payload = apply_mask(data[body:end], data[key:body]) if masked else data[body:end]
            if first == _WHOLE_BINARY and self._partial is None:
                self.message_received(payload)
            else:
                self._take(first, payload)
            if self._partial is _ENDED:
                return count
        self._keep(data[position:], need)
        return count

    def _room(self) -> int:
        partial = self._partial
        taken = 0 if partial is None or partial.message is None else len(partial.message)
        return self.max_message - taken

    def _keep(self, unread: bytes, need: int) -> None:
        partial = self._partial
        if unread:
            if partial is None:
                self._partial = partial = _Partial()
            partial.unread = bytearray(unread)
            partial.need = need
        elif partial is not None and partial.message is None:
            self._partial = None

    def _take(self, first: int, payload: bytes) -> None:
        opcode = first & 0x0F
        if opcode & CONTROL:
            self._control(opcode, payload)
            return
        partial = self._partial
        if opcode == CONTINUATION:
            if partial is None or partial.message is None:
                self._violate(1002, "continuation frame outside a fragmented message")
                return
            partial.message += payload
            if first & FIN:
                message = bytes(partial.message)
                partial.message = None
                self._complete(partial.first, message)
        elif partial is not None and partial.message is not None:
            self._violate(1002, "new message inside a fragmented message")
        elif first & FIN:
            self._complete(first, payload)
        else:
            if partial is None:
                self._partial = partial = _Partial()
            partial.first = first
            partial.message = bytearray(payload)

    def _complete(self, first: int, payload: bytes) -> None:
        if first & RSV1:
            try:
                inflated = inflate(payload, self.max_message)
            except zlib.error:
                self._violate(1007, "message is not valid deflate")
                return
            if inflated is None:
                self._violate(1009, f"message exceeds {self.max_message} bytes when inflated")
                return
            payload = inflated
        if first & 0x0F == TEXT:
            try:
                text = payload.decode()
            except UnicodeDecodeError:
                self._violate(1007, "text message is not UTF-8")
                return
            self.message_received(text)
        else:
            self.message_received(payload)

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.ping_received(payload)
        elif opcode == PONG:
            self.pong_received(payload)
        elif not payload:
            self._close(1005, "")
        elif len(payload) == 1 or not is_close_code(code := int.from_bytes(payload[:2], "big")):
            self._violate(1002, "close frame without a valid code")
        else:
            try:
                reason = payload[2:].decode()
            except UnicodeDecodeError:
                self._violate(1007, "close reason is not UTF-8")
            else:
                self._close(code, reason)

    def _close(self, code: int, reason: str) -> None:
        self._partial = _ENDED
        self.close_received(code, reason)

    def _violate(self, code: int, reason: str, count: int = 0) -> int:
        """Stop reading and report the violation. Returns `count`, the number of frames that were read before."""
        self._partial = _ENDED
        self.violated(code, reason)
        return count
