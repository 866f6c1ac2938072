"""Runs the checks of one server in order, until one fails.

Used by `doctor`. A check is a name and a coroutine function that returns what it found, in words, or raises
CheckFailed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

STEP_TIMEOUT = 5.0
"""Seconds for one step of a check: a connection that takes longer is of no use for commands."""

Check = tuple[str, Callable[[], Awaitable[str]]]


class CheckFailed(Exception):
    """A check failed. `message` says what was wrong, `advice` what to do next."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of `target`. `ok` is None if the check was skipped. `seconds` is how long it took."""

    name: str
    target: str
    ok: bool | None
    message: str
    advice: str = ""
    seconds: float = 0.0


async def run_checks(target: str, checks: Sequence[Check]) -> AsyncIterator[CheckResult]:
    """Run the checks of `target` one after the other; those after the first failure are skipped."""
    failed = ""
    for name, check in checks:
        if failed:
            yield CheckResult(name, target, None, f"skipped, because {failed} failed")
            continue
        began = time.monotonic()
        try:
            message = await check()
        except CheckFailed as e:
            failed = name
            yield CheckResult(name, target, False, e.message, e.advice, time.monotonic() - began)
        else:
            yield CheckResult(name, target, True, message, "", time.monotonic() - began)
