"""What waits to be sent to the server: bounded in commands and bytes, and sent by priority."""

from __future__ import annotations

import asyncio
import os
import signal

from fairlead.store.backlog import LIMITS, MOST_BACKGROUND, MOST_BULK, SLOW, Backlog, Call, Priority
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer, items, octets

from support.store_calls import COMMANDS, Connect


async def test_commands_of_one_loop_iteration_share_batches_of_bounded_count(pipeliner: Pipeliner) -> None:
    sizes: list[int] = []
    pipeliner.on_batch = lambda seconds, commands: sizes.append(commands)
    calls = [pipeliner.submit("RPUSH", "list", number) for number in range(1000)]
    assert [integer(reply) for reply in await asyncio.gather(*calls)] == list(range(1, 1001))
    assert sizes == [COMMANDS.batch] * 7 + [1000 - 7 * COMMANDS.batch]
    assert pipeliner.last_latency > 0


async def test_batches_are_bounded_in_bytes_and_a_larger_command_goes_alone(pipeliner: Pipeliner) -> None:
    sizes: list[int] = []
    pipeliner.on_batch = lambda seconds, commands: sizes.append(commands)
    third, large = b"x" * (COMMANDS.batch_bytes // 3 - 100), b"x" * (COMMANDS.batch_bytes + 1)
    calls = [pipeliner.submit("SET", "key", value) for value in (third, third, third, third, large, b"", b"")]
    assert await asyncio.gather(*calls) == [b"OK"] * 7
    assert sizes == [3, 1, 1, 2]


async def test_the_backlog_is_bounded_in_commands(own_valkey: EmbeddedValkey, connect: Connect) -> None:
    pipeliner = await connect(own_valkey.url)
    os.kill(own_valkey.pid, signal.SIGSTOP)
    calls = [pipeliner.submit("PING") for _ in range(COMMANDS.waiting)]
    assert not calls[-1].done()
    assert pipeliner.backlog == pipeliner.waiting(Priority.COMMANDS) == COMMANDS.waiting
    surplus = pipeliner.submit("PING")
    assert "backlog full: 8192 calls" in str(surplus.exception())
    assert "at priority commands (limits 8192" in str(surplus.exception())
    beat = pipeliner.submit("PING", priority=Priority.CONTROL)
    assert not beat.done()  # one priority that is full takes nothing from another
    os.kill(own_valkey.pid, signal.SIGCONT)
    assert await asyncio.gather(*calls) == [b"PONG"] * COMMANDS.waiting
    assert await beat == b"PONG"


async def test_the_backlog_is_bounded_in_bytes(valkey: EmbeddedValkey) -> None:
    # 48 MiB there and back may take more than the usual second on a busy machine.
    pipeliner = Pipeliner(valkey.url, batch_timeout=30)
    pipeliner.start()
    try:
        assert await pipeliner.wait_available(20)
        value = b"x" * (COMMANDS.waiting_bytes // 4)
        calls = [pipeliner.submit("ECHO", value) for _ in range(3)]
        surplus = pipeliner.submit("ECHO", value + value)
        assert "backlog full" in str(surplus.exception())
        await asyncio.gather(*calls)
        assert pipeliner.backlog == 0
        assert await pipeliner.submit("ECHO", value) == value  # the bytes were counted back
    finally:
        await pipeliner.aclose()


async def test_each_batch_takes_some_of_every_priority_in_their_order(
    own_valkey: EmbeddedValkey, connect: Connect
) -> None:
    """Thousands of background calls wait; a beat and a command that come last are in the very next batch."""
    pipeliner = await connect(own_valkey.url)
    executed: list[str] = []
    sizes: list[int] = []
    pipeliner.on_batch = lambda seconds, commands: sizes.append(commands)

    def call(name: str, priority: Priority) -> asyncio.Future[Reply]:
        made = pipeliner.submit("RPUSH", "order", name, priority=priority)
        made.add_done_callback(lambda done: executed.append(name))
        return made

    calls = [call("list", Priority.BACKGROUND) for _ in range(5_000)]
    calls += [call(name, Priority[name.upper()]) for name in ("commands", "results", "control")]
    await asyncio.gather(*calls)
    assert executed[:4] == ["control", "results", "commands", "list"]
    most = LIMITS[Priority.BACKGROUND].batch
    assert sizes[0] == 3 + most
    assert max(sizes[1:]) <= MOST_BACKGROUND
    assert sum(sizes) == 3 + 5_000
    order = items(await pipeliner.submit("LRANGE", "order", 0, 3))
    assert order == [b"control", b"results", b"commands", b"list"]


async def test_slow_batches_take_more_of_what_waits_at_the_lowest_priority() -> None:
    backlog, most = Backlog(), LIMITS[Priority.BACKGROUND].batch
    loop = asyncio.get_running_loop()

    def put(count: int, priority: Priority) -> None:
        for _ in range(count):
            assert not backlog.put(Call(loop.create_future(), b"PING", None, priority, 1))

    put(1_000, Priority.BACKGROUND)
    taken = []
    for seconds in (SLOW / 2, SLOW * 2, SLOW * 2, SLOW * 2, SLOW / 2, SLOW * 2):
        taken.append(len(backlog.take()))
        backlog.answered(seconds)
    assert taken == [most, most, 2 * most, MOST_BACKGROUND, MOST_BACKGROUND, most]
    put(200, Priority.COMMANDS)
    assert len(backlog.take()) == LIMITS[Priority.COMMANDS].batch + 2 * most, "the others have their limits"


async def test_thousands_of_calls_of_the_bulk_lane_leave_most_of_each_batch_to_others() -> None:
    backlog, loop = Backlog(), asyncio.get_running_loop()
    for priority, count in ((Priority.BULK, 2_000), (Priority.COMMANDS, 1), (Priority.RESULTS, 1)):
        for _ in range(count):
            assert not backlog.put(Call(loop.create_future(), b"PING", None, priority, 1))
    first = [call.priority for call in backlog.take()]
    assert first == [Priority.RESULTS, Priority.COMMANDS] + [Priority.BULK] * LIMITS[Priority.BULK].batch
    for _ in range(3):
        backlog.answered(SLOW * 2)
    assert len(backlog.take()) == MOST_BULK


async def test_what_is_told_to_others_is_held_back_at_every_priority_that_tells() -> None:
    told = {
        priority
        for priority in Priority
        if Call(asyncio.get_running_loop().create_future(), b"PING", None, priority, 1).told
    }
    assert told == {Priority.RESULTS, Priority.COMMANDS, Priority.BULK}


async def test_a_slow_batch_with_nothing_behind_it_changes_nothing() -> None:
    backlog, loop = Backlog(), asyncio.get_running_loop()
    for _ in range(4):
        backlog.answered(1.0)
    for _ in range(100):
        assert not backlog.put(Call(loop.create_future(), b"PING", None, Priority.BACKGROUND, 1))
    assert len(backlog.take()) == LIMITS[Priority.BACKGROUND].batch


async def test_no_priority_keeps_a_lower_one_waiting_for_ever(pipeliner: Pipeliner) -> None:
    """More than a batch of each higher priority is always waiting, and the list gets on all the same."""
    listed = asyncio.create_task(_all(pipeliner, "list", Priority.BACKGROUND, 200))
    others = [
        asyncio.create_task(_forever(pipeliner, priority, LIMITS[priority].batch + 1))
        for priority in (Priority.CONTROL, Priority.RESULTS, Priority.COMMANDS)
    ]
    async with asyncio.timeout(30):
        await listed
    for task in others:
        task.cancel()
    await asyncio.wait(others)


async def _all(pipeliner: Pipeliner, key: str, priority: Priority, count: int) -> None:
    await asyncio.gather(*(pipeliner.submit("RPUSH", key, n, priority=priority) for n in range(count)))


async def _forever(pipeliner: Pipeliner, priority: Priority, at_once: int) -> None:
    async def one() -> None:
        while True:
            await pipeliner.submit("INCR", priority.label, priority=priority)

    await asyncio.gather(*(one() for _ in range(at_once)))


async def test_batches_are_bounded_by_the_expected_bytes_of_their_replies(pipeliner: Pipeliner) -> None:
    """Small requests, large replies: 512 KiB each, of which a batch may bring 4 MiB."""
    sizes: list[int] = []
    await pipeliner.submit("SET", "large", b"x" * (512 << 10))
    pipeliner.on_batch = lambda seconds, commands: sizes.append(commands)
    calls = [pipeliner.submit("GET", "large", expected=512 << 10) for _ in range(20)]
    calls.append(pipeliner.submit("GET", "large", expected=COMMANDS.back + 1))
    assert all(len(octets(reply)) == 512 << 10 for reply in await asyncio.gather(*calls))
    assert sizes == [8, 8, 4, 1]
