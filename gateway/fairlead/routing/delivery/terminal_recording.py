"""The recording of one terminal as an asciicast file, version 2: a header line, then one line for each event.

`TerminalRecorder` feeds it and writes what it gives to the file. It is pure: the time is an argument. Only what the
terminal shows is recorded, and its size; what is typed is not, because it may be a password that nobody sees. A file
that would become too large says so, and has only the end of the command after that.

Source of the format: https://docs.asciinema.org/manual/asciicast/v2/
"""

from __future__ import annotations

import codecs
from typing import Final

import msgspec

from fairlead.signing.errors import SignatureRejected
from fairlead.signing.input_signature import unpack_input

OUTPUT: Final = "pty"
"""The kind of the chunks that a terminal's output is sent in."""
RESIZE: Final = 1
"""The first octet of an input chunk with the terminal's new size. Data has 0."""
RESIZES: Final = 64
"""How many new sizes may wait for the next output. Programs redraw after each, so more are never needed."""

FULL: Final = "cut: the recording is full, and what the terminal shows from here on is not in it"
"""The marker where the output ends that is recorded."""

_encode = msgspec.json.Encoder().encode


class _Size(msgspec.Struct):
    cols: int = 80
    rows: int = 24
    term: str = ""


_decode_size = msgspec.json.Decoder(_Size).decode


def _size(payload: bytes) -> _Size | None:
    """The size in a payload of `shell`, or in a resize; None if it is not valid, which the agent then refuses."""
    try:
        return _decode_size(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class TerminalRecording:
    def __init__(
        self, title: str, payload: bytes, began: float, next_chunk: int = 0, *, signed: bool = False,
        most: int = 1 << 40,
    ) -> None:  # fmt: skip
        """`payload` is that of the command, and `began` the time since 1970 in seconds. A recording that begins while
        the terminal is open has its first output in chunk `next_chunk`. `signed` says that the input is signed. `most`
        are the bytes of the recording."""
        self.next = next_chunk
        """The number of the next chunk of output: an agent sends again what it has no receipt for."""
        self._signed = signed
        self._began = began
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        size = _size(payload) or _Size()
        header = {
            "version": 2, "width": size.cols, "height": size.rows, "timestamp": int(began), "title": title,
            "env": {"TERM": size.term} if size.term else {},
        }  # fmt: skip
        self._lines = [_encode(header) + b"\n"]
        self._resizes = 0
        self._left = most - len(self._lines[0])
        """Bytes that may still be added, about: sizes, markers, and the JSON of the last line may go beyond them."""
        self._full = False

    def output(self, n: int, data: bytes, now: float) -> bool:
        """Record chunk `n`, unless it is recorded already. A character may be cut between two chunks. True if it is the
        first one for which there is no room."""
        if n < self.next:
            return False
        self.next = n + 1
        if self._full:
            return False
        self._full = len(data) > self._left
        if self._full:
            self._add(now, "m", FULL)
        elif text := self._decoder.decode(data):
            self._add(now, "o", text)
        return self._full

    def resized(self, payload: bytes, now: float) -> None:
        """Record the new size of the terminal, if this chunk of input has one."""
        if self._signed:
            try:
                payload = unpack_input(payload)[2]
            except SignatureRejected:
                return  # the agent refuses it
        if payload[:1] != bytes((RESIZE,)) or self._resizes >= RESIZES or self._full:
            return
        if (size := _size(payload[1:])) is not None:
            self._resizes += 1
            self._add(now, "r", f"{size.cols}x{size.rows}")

    def ended(self, state: str, now: float) -> None:
        """Record how the command ended, as a marker: a file without it was cut off."""
        self._add(now, "m", f"ended: {state}")

    def take(self) -> bytes:
        """The lines that are not written yet."""
        data = b"".join(self._lines)
        self._lines.clear()
        self._resizes = 0
        return data

    def _add(self, now: float, code: str, text: str) -> None:
        line = _encode((round(max(now - self._began, 0.0), 6), code, text)) + b"\n"
        self._left -= len(line)
        self._lines.append(line)
