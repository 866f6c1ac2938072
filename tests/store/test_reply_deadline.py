"""The wait for replies: a silent server is given up in time, and a pause of this process does not count as silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer
from fairlead.store.reply_deadline import ReplyDeadline


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_pause_of_this_process_does_not_count_as_silence(
    own_valkey: EmbeddedValkey, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The process pauses after the call was sent, for longer than the timeout of a reply, which arrives meanwhile."""

    async def play() -> None:
        pipeliner = Pipeliner(own_valkey.url, batch_timeout=0.4)
        pipeliner.start()
        assert await pipeliner.wait_available(5)
        for turns in range(8):
            before = integer(await pipeliner.submit("INCR", "counted"))
            call = pipeliner.submit("INCR", "counted")
            for _ in range(turns):
                await asyncio.sleep(0)
            time.sleep(0.6)  # noqa: ASYNC251  # what is tested
            assert integer(await call) == before + 1
        assert pipeliner.trips == 0
        await pipeliner.aclose()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(play())


async def test_silence_ends_the_batch_in_time() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = ReplyDeadline(0.2, 1.0)
    with pytest.raises(TimeoutError):
        async with deadline.timeout:
            await asyncio.sleep(30)
    deadline.stop()
    assert 0.2 <= loop.time() - began < 20


async def test_replies_that_keep_arriving_are_awaited_up_to_a_limit() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = ReplyDeadline(0.4, 1.2)

    async def read() -> None:
        async with deadline.timeout:
            while True:
                await asyncio.sleep(0.05)
                deadline.progress()

    with pytest.raises(TimeoutError):
        await read()
    deadline.stop()
    assert 1.2 <= loop.time() - began < 20
