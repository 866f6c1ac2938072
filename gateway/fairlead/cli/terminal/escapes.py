"""The escapes of a remote terminal: ~. ~? and ~~ at the start of a line, as in ssh.

Used by `shell`. Pure: it is given what the user typed and returns what goes to the remote side.
"""

from __future__ import annotations


class EscapeParser:
    """Takes the escapes out of what is typed."""

    def __init__(self) -> None:
        self.left = False
        """The user typed ~. and wants to leave."""
        self.help_requested = False
        """The user typed ~? and wants to see the escapes; the reader resets it."""
        self._line_start = True
        self._tilde = False

    def feed(self, typed: bytes) -> bytes:
        """What of `typed` goes to the remote side."""
        out = bytearray()
        for octet in typed:
            if self._tilde:
                self._tilde = False
                if octet == ord("."):
                    self.left = True
                    break
                if octet == ord("?"):
                    self.help_requested = True
                    continue
                out += b"~"
                self._line_start = False
                if octet == ord("~"):
                    continue
            if self._line_start and octet == ord("~"):
                self._tilde = True
                continue
            out.append(octet)
            self._line_start = octet in b"\r\n"
        return bytes(out)
