"""Gives freed memory back to the operating system: once a minute, on a thread.

`node_server` runs it for as long as a node serves. By itself, glibc gives back only what lies above everything that is
still in use, so the few links that stay would keep the memory of all that have left. It frees nothing itself, and does
nothing where the C library is another.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
from collections.abc import Callable
from contextlib import suppress

PERIOD = 60.0
"""Seconds. With 15,000 links over TLS, it takes some 10 ms, and up to 40 ms after most of them have left at once,
and with more links as much more. The event loop goes on meanwhile, until it needs memory that its own reserve does not
have."""


def find_trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`, or None if the C library is another."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return found


async def return_memory() -> None:
    """Return at once if it is not possible here, and never otherwise."""
    trim = find_trim()
    while trim is not None:
        await asyncio.sleep(PERIOD * random.uniform(0.9, 1.1))  # the workers of a supervisor take turns
        with suppress(RuntimeError):  # no thread can be started now, and nothing that serves must end for that
            await asyncio.to_thread(trim, 0)
