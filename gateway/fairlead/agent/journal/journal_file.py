"""The journal on disk: a locked folder with one file, which grows and is replaced by a shorter one.

Used by `writer` and `journal`, which decide what is in the file. Appending happens on the event loop, because it costs
less than the write to a socket that follows, and bytes that the kernel has survive the end of the process. What waits
for a disk (`sync`, `prepare`) must run in a thread. A failed append leaves the file as it was.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from fairlead.errors import ConfigError

logger = logging.getLogger("fairlead.agent")

BLOCK = 1 << 20
"""Bytes of one write while a file is prepared or its tail copied."""


class JournalFile:
    def __init__(self, path: Path) -> None:
        """Create the folder if necessary, and lock it. Raises ConfigError if another process uses it, or if it cannot
        be used.
        """
        self.path = path
        self.size = 0
        self._file = path / "journal"
        self._fresh = path / "journal.new"
        self._fd = -1
        self._renamed = False
        """Whether the folder itself still has to be synced."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise ConfigError(f"the journal folder {path} cannot be used: {e}") from e
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)
            self._fresh.unlink(missing_ok=True)
        except BlockingIOError as e:
            holder = os.pread(self._lock, 20, 0).decode(errors="replace") or "unknown"
            os.close(self._lock)
            raise ConfigError(
                f"the journal folder {path} is in use by process {holder}: each agent needs its own"
            ) from e
        except OSError as e:
            os.close(self._lock)
            raise ConfigError(f"the journal folder {path} cannot be used: {e}") from e

    def read(self) -> bytes:
        """The whole file; empty when there is no such file."""
        try:
            return self._file.read_bytes()
        except FileNotFoundError:
            return b""

    def open(self, size: int) -> None:
        """Continue after the first `size` bytes; what follows them is cut off."""
        self._fd = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(self._fd, size)
        self.size = size

    def append(self, data: bytes) -> None:
        """Append `data`. If this raises OSError, nothing of `data` is in the file."""
        try:
            _write(self._fd, data, self.size)
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Wait until everything that was appended is on the disk. Call it in a thread."""
        os.fsync(self._fd)
        if self._renamed:
            folder = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._renamed = False

    def prepare(self, pieces: Iterable[bytes]) -> tuple[int, int]:
        """Write and sync a file that is to replace this one. Returns its descriptor and size. Call it in a thread."""
        fd = os.open(self._fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        size, block = 0, bytearray()
        try:
            for piece in pieces:
                block += piece
                if len(block) >= BLOCK:
                    size += _write(fd, block, size)
                    block.clear()
            size += _write(fd, block, size)
            os.fsync(fd)
        except BaseException:
            self._discard(fd)
            raise
        return fd, size

    def replace(self, prepared: tuple[int, int], since: int) -> None:
        """Continue with the prepared file, extended by what was appended to this one `since` it had that size.

        That tail need not be on the disk yet: whoever waits for a sync waits for the next one, which syncs the new
        file.
        """
        fd, size = prepared
        try:
            while since < self.size:
                block = os.pread(self._fd, min(BLOCK, self.size - since), since)
                size += _write(fd, block, size)
                since += len(block)
            os.replace(self._fresh, self._file)
        except BaseException:
            self._discard(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.size, self._renamed = fd, size, True

    def close(self) -> None:
        """Release the folder: another process may use it."""
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    def _discard(self, fd: int) -> None:
        os.close(fd)
        self._fresh.unlink(missing_ok=True)


def _write(fd: int, data: bytes | bytearray, at: int) -> int:
    """Write all of `data` at this position. Several writes may be needed: a disk that becomes full takes a part first
    and reports an error at the next one.
    """
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)
    return done
