"""What the tests of the store share: the scripts that they run, and the error of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fairlead.store.backlog import LIMITS, Priority
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.script import Script

Connect = Callable[[str], Awaitable[Pipeliner]]

COMMANDS = LIMITS[Priority.COMMANDS]

COUNT = Script("count", "#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
REFUSE = Script("refuse", "#!lua\nreturn redis.error_reply('STALE generation ' .. ARGV[1])")
BROKEN = Script("broken", "#!lua\nthis is not Lua")


async def failure(call: asyncio.Future[Any]) -> BaseException | None:
    """The error of a call, None when it succeeded; fails when there is no answer within 5 s."""
    await asyncio.wait([call], timeout=5)
    assert call.done()
    return call.exception()
