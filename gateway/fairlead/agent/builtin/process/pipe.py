"""The agent's end of a pipe or a terminal, which is read or written only on request.

Used by `exec` and `shell`. It registers its descriptor with the event loop for one wait at a time. A program whose
output nobody takes therefore costs nothing and blocks on its own full pipe.
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
        """Takes ownership of `fd`."""
        self._fd = fd
        self._quota: int | None = None
        self._readable_event = asyncio.Event()
        os.set_blocking(fd, False)

    @property
    def fd(self) -> int:
        return self._fd

    async def read(self, limit: int) -> bytes:
        """Read what there is, at most `limit` bytes; b"" at the end."""
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
                    return b""  # no process has the other side of the terminal open
                raise
            if self._quota is not None:
                self._quota -= len(data)
            return data
        return b""

    async def _readable(self) -> None:
        self._readable_event.clear()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._readable_event.set)
        try:
            await self._readable_event.wait()
        finally:
            loop.remove_reader(self._fd)

    def finish(self, most: int | None = None) -> None:
        """Treat what can be read now as all that will come: the bytes that the kernel reports for a pipe, or `most`
        bytes where it cannot tell.
        """
        if most is None:
            unread = bytearray(4)
            fcntl.ioctl(self._fd, termios.FIONREAD, unread)
            most = int.from_bytes(unread, sys.byteorder)
        self._quota = most
        self._readable_event.set()

    async def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`. Raises BrokenPipeError when the other end is closed."""
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
