"""The data that one HTTP connection has received and not fed to the parser yet: it finds the heads of requests.

`http_connection` has one for each connection and feeds the parser at most one request at a time. A head is passed on
only when it is complete, so the parser, which has no limit, never sees one that is too long.
"""

from __future__ import annotations

from typing import Final

from fairlead.carrier.http_server.request.head import RequestRefused

MAX_REQUEST_HEAD: Final = 64 << 10
"""The most bytes of a request line and its headers. Ingresses allow 8 to 32 KiB; uvicorn's parser has no limit."""
MAX_EMPTY_LINES: Final = 2
"""The most empty lines before a request. RFC 9112 §2.2 asks servers to ignore at least one; without a limit, a flood of
them would be read forever."""


class RequestBuffer:
    __slots__ = ("_at", "_data", "_scanned", "left")

    def __init__(self) -> None:
        self.left = 0
        """How many bytes have not been taken."""
        self._data = b""
        self._at = 0
        """Where the part of `_data` begins that has not been taken."""
        self._scanned = 0
        """How much of that part is known to contain no end of a head."""

    @property
    def size(self) -> int:
        """The bytes that the buffer occupies, with those that have been taken out of it since the last `append`."""
        return len(self._data)

    def append(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data if self._data else data
        self._at = 0
        self.left = len(self._data)

    def clear(self) -> None:
        self._data = b""
        self._at = self._scanned = self.left = 0

    def take(self, count: int) -> bytes:
        """Take the next `count` bytes, or as many as there are."""
        start, self._at = self._at, self._at + min(count, self.left)
        self.left = len(self._data) - self._at
        return self._data[start : self._at]

    def take_head(self) -> bytes | None:
        """Take a whole head, from the request line to the empty line that ends it, or return None until it has arrived.
        Raises RequestRefused if the data cannot become a head.
        """
        data = self._data
        for _ in range(MAX_EMPTY_LINES):
            if data[self._at : self._at + 2] != b"\r\n":
                break
            self._at += 2
            self._scanned = 0
        start = self._at
        rest = len(data) - start
        if rest == 0 or (rest == 1 and data[-1] == 13):
            self._wait(0)
            return None
        end = data.find(b"\r\n\r\n", start + self._scanned)
        length = (len(data) if end < 0 else end + 4) - start
        if length > MAX_REQUEST_HEAD:
            raise RequestRefused(431, f"The head is too long: expected at most {MAX_REQUEST_HEAD} bytes.")
        if not 65 <= data[start] <= 90:
            raise RequestRefused(400, "This is not an HTTP request: expected a method in capital letters.")
        if end >= 0:
            self._scanned = 0
            self._at = end + 4
            self.left = len(data) - self._at
            return data if length == len(data) else data[start : end + 4]
        if data.find(b"\n\n", start) >= 0 or data.find(b"\n\r\n", start) == start:
            raise RequestRefused(400, "Invalid end of a line: expected CR LF.")
        self._wait(max(length - 3, 0))
        return None

    def _wait(self, scanned: int) -> None:
        """Keep the beginning of a head, and free the bytes that have been taken."""
        self._data = self._data[self._at :]
        self._at = 0
        self.left = len(self._data)
        self._scanned = scanned
