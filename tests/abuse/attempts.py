"""Attempts at a rate, each with the outcome that the attacker saw: how the attacks on trust are played.

An attempt is counted as `KIND: OUTCOME`. `run.py` says for each attack which outcomes are refusals; any other one is a
success of the attacker.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from fairlead.wire.messages import Hello, Welcome

from abuse.http_attacks import GUESSERS, SOURCE, AttackScale, Ports
from abuse.link_attacks import CLOSE, CODEC, RawLink, UpgradeRefused
from abuse.victim import status_of

RATE = 200.0
"""Attempts a second."""
Attempt = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Site(Ports):
    """Where the victim is, and what is in the hands of its owner: its Redis, its folder and its process."""

    redis: str
    folder: str
    pid: int


async def at_rate(
    scale: AttackScale, tried: Counter[str], attempts: Iterator[tuple[str, Attempt]], rate: float = RATE
) -> None:
    """Make so many attempts a second, for a minute at most, and count their outcomes."""
    free = asyncio.Semaphore(GUESSERS)

    async def one(kind: str, attempt: Attempt) -> None:
        async with free:
            tried[f"{kind}: {await attempt()}"] += 1

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for n in range(scale.count(int(rate * 60))):
            await asyncio.sleep(max(0.0, began + n / rate - time.monotonic()))
            if time.monotonic() - began > scale.seconds:
                break
            if (chosen := next(attempts, None)) is None:
                break
            group.create_task(one(*chosen))


def sent(port: int, request: bytes, source: str = SOURCE) -> Attempt:
    """A request over a connection of its own; its outcome is the status of the answer."""

    async def attempt() -> str:
        return str(await status_of(port, request, source) or "lost")

    return attempt


async def hello_outcome(site: Site, hello: Hello | Callable[[str], Hello], token: str) -> str:
    """What comes of a hello: "linked", the code with which the link is closed, or the status of the upgrade."""
    try:
        link = await RawLink.dial(site.link, hello, token=token)
    except UpgradeRefused as refused:
        return refused.status
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return "lost"
    try:
        async with asyncio.timeout(20):
            while True:
                first, payload = await link.read_frame()
                if first & 0x0F == CLOSE:
                    return str(int.from_bytes(payload[:2], "big"))
                if isinstance(CODEC.decode(payload), Welcome):
                    return "linked"
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return "lost"
    finally:
        link.abort()
