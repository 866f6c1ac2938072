"""Waits for conditions by polling. Used by the helpers beside it and by the fixtures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

WAIT = 20.0

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = WAIT) -> T:
    """What is true at last."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
    return found
