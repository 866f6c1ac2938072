"""Reads the last lines of a file that grows, and follows it when it is replaced or shortened.

Used by `log.tail`; its methods block. The path is resolved and checked as `file.get` does it, each time that the file
is opened.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from fairlead.agent.builtin.files.os_errors import command_error, require_regular_file
from fairlead.agent.builtin.files.path_resolver import PathResolver

BLOCK: Final = 64 << 10
FURTHEST: Final = 4 << 20
"""Bytes before the end in which the beginning of the last lines is looked for."""


class LogFile:
    """`rotations` counts how often the file was replaced or shortened while it was followed."""

    def __init__(self, path: str, roots: PathResolver) -> None:
        self._path = path
        self._roots = roots
        self._fd = -1
        self._at = 0
        self.rotations = 0

    def open(self, lines: int) -> None:
        """Open the file at the beginning of its last `lines` lines. Raises CommandError."""
        self._fd = self._opened()
        self._at = _beginning(self._fd, os.fstat(self._fd).st_size, lines)

    def read(self) -> bytes:
        """The next bytes; b"" if there are none now. Raises CommandError."""
        try:
            if os.fstat(self._fd).st_size < self._at:
                self._at, self.rotations = 0, self.rotations + 1
            data = os.pread(self._fd, BLOCK, self._at)
            if not data and self._replaced():
                fresh = self._opened()
                os.close(self._fd)
                self._fd, self._at, self.rotations = fresh, 0, self.rotations + 1
                data = os.pread(self._fd, BLOCK, 0)
        except OSError as e:
            raise command_error(self._path, e) from e
        self._at += len(data)
        return data

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _replaced(self) -> bool:
        """Whether the path leads to another file. While there is none, the old one goes on."""
        try:
            now = os.stat(self._path)
        except OSError:
            return False
        return not os.path.samestat(now, os.fstat(self._fd))

    def _opened(self) -> int:
        """A descriptor of the file. Raises CommandError."""
        place = self._roots.resolve(self._path)
        try:
            if place.status is None:
                raise command_error(self._path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
            require_regular_file(self._path, place.status)  # before it is opened: opening a device has effects
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                fd = os.open(place.name, flags, dir_fd=place.folder)
            except OSError as e:
                raise command_error(self._path, e) from e
        finally:
            place.close()
        try:
            status = os.fstat(fd)
            require_regular_file(self._path, status)
            self._roots.check(self._path, status)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _beginning(fd: int, size: int, lines: int) -> int:
    """Where the last `lines` lines begin, at most FURTHEST bytes before the end."""
    at, left = size, lines + 1
    if lines and size and os.pread(fd, 1, size - 1) != b"\n":
        left -= 1  # the last line has no end yet
    while at > max(size - FURTHEST, 0) and left:
        begin = max(at - BLOCK, size - FURTHEST, 0)
        block = os.pread(fd, at - begin, begin)
        end = len(block)
        while left and (end := block.rfind(b"\n", 0, end)) >= 0:
            left -= 1
            if not left:
                return begin + end + 1
        at = begin
    return at if lines else size
