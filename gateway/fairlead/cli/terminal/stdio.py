"""Reading and writing the process's own descriptors without stopping the event loop.

Used by what carries a remote program's input and output. A slow terminal or a pipe that nobody reads must not keep
the loop from hearing Ctrl-C. Descriptors are never made non-blocking, because the shell that started us shares them:
they are asked whether they are ready, and then given no more than a ready one takes at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

PIECE = 4096
"""Bytes that a pipe which says it is ready takes without waiting (PIPE_BUF on Linux)."""


async def read(fd: int, most: int) -> bytes:
    """What there is, once there is something; empty at the end."""
    loop = asyncio.get_running_loop()
    await _ready(fd, loop.add_reader, loop.remove_reader)
    return os.read(fd, most)


async def write(fd: int, data: bytes) -> None:
    """All of `data`."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        waits = await _ready(fd, loop.add_writer, loop.remove_writer)
        rest = rest[os.write(fd, rest[:PIECE] if waits else rest) :]


async def _ready(fd: int, add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], object]) -> bool:
    """False when it is a file, or a device like one, which is always ready and cannot be waited for."""
    ready = asyncio.Event()
    try:
        add(fd, ready.set)
    except PermissionError:  # that is epoll's word for it
        return False
    try:
        await ready.wait()
    finally:
        remove(fd)
    return True
