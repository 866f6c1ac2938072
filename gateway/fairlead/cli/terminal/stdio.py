"""Reads and writes the process's own file descriptors without blocking the event loop.

Used for the input and output of remote programs. A slow terminal, or a pipe that nobody reads, must not keep the loop
from handling Ctrl-C. Descriptors are never made non-blocking, because they are shared with the shell that started this
process: each is polled for readiness, and then gets no more than a ready descriptor accepts without blocking.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

PIPE_CHUNK = 4096
"""Bytes that a ready pipe accepts without blocking (PIPE_BUF on Linux)."""


async def read(fd: int, most: int) -> bytes:
    """Wait for input and return at most `most` bytes of it; empty at the end of file."""
    loop = asyncio.get_running_loop()
    await _wait_ready(fd, loop.add_reader, loop.remove_reader)
    return os.read(fd, most)


async def write(fd: int, data: bytes) -> None:
    """Write all of `data`."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        blocks = await _wait_ready(fd, loop.add_writer, loop.remove_writer)
        rest = rest[os.write(fd, rest[:PIPE_CHUNK] if blocks else rest) :]


async def _wait_ready(fd: int, add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], object]) -> bool:
    """Returns False for a regular file, or a device that behaves like one: it is always ready and cannot be polled."""
    ready = asyncio.Event()
    try:
        add(fd, ready.set)
    except PermissionError:  # epoll's answer for such a descriptor
        return False
    try:
        await ready.wait()
    finally:
        remove(fd)
    return True
