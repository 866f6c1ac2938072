"""Our end of a pipe or a terminal, read or written only when asked to: what is not read waits where it was written.

Used by `exec` and `shell`. It adds its descriptor to the loop for one wait at a time, so that a program whose output
nobody takes costs nothing and is stopped by its own full pipe.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sys
import termios


class Pipe:
    def __init__(self, fd: int) -> None:
        """Owns `fd` from now on."""
        self._fd = fd
        self._quota: int | None = None
        self._news = asyncio.Event()
        os.set_blocking(fd, False)

    @property
    def fd(self) -> int:
        return self._fd

    async def read(self, limit: int) -> bytes:
        """What there is; empty at the end."""
        while self._quota is None or self._quota > 0:
            try:
                data = os.read(self._fd, limit if self._quota is None else min(limit, self._quota))
            except BlockingIOError:
                if self._quota is not None:
                    return b""
                await self._readable()
                continue
            except OSError as e:
                if e.errno == errno.EIO:
                    return b""  # a terminal that nobody has open on the other side
                raise
            if self._quota is not None:
                self._quota -= len(data)
            return data
        return b""

    async def _readable(self) -> None:
        self._news.clear()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._news.set)
        try:
            await self._news.wait()
        finally:
            loop.remove_reader(self._fd)

    def finish(self, most: int | None = None) -> None:
        """The end comes behind what can be read now: what is counted in a pipe, `most` bytes where none can count."""
        if most is None:
            unread = bytearray(4)
            fcntl.ioctl(self._fd, termios.FIONREAD, unread)
            most = int.from_bytes(unread, sys.byteorder)
        self._quota = most
        self._news.set()

    async def write(self, data: bytes | memoryview) -> None:
        """All of `data`. Raises BrokenPipeError when nobody reads any more."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                await self._writable()
            except OSError as e:
                if e.errno == errno.EIO:
                    raise BrokenPipeError("the terminal is gone") from e
                raise

    async def _writable(self) -> None:
        # An event of its own: a terminal is read and written through one descriptor.
        free = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_writer(self._fd, free.set)
        try:
            await free.wait()
        finally:
            loop.remove_writer(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
