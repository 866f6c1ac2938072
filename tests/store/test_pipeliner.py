from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import BusUnavailable, ConfigError, NotAnswered
from fairlead.store.backlog import LIMITS, Priority
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.endpoint import SOCKET_PATH_LIMIT
from fairlead.store.errors import ScriptError, StoreError
from fairlead.store.pipeliner import BATCH_PATIENCE, PROGRESS, Pipeliner
from fairlead.store.reply import Reply, integer, items, octets, table
from fairlead.store.script import Script

Connect = Callable[[str], Awaitable[Pipeliner]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]

COMMANDS = LIMITS[Priority.COMMANDS]

COUNT = Script("count", "#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
REFUSE = Script("refuse", "#!lua\nreturn redis.error_reply('STALE generation ' .. ARGV[1])")
BROKEN = Script("broken", "#!lua\nthis is not Lua")


async def failure(call: asyncio.Future[Any]) -> BaseException | None:
    """The error of a call, None when it succeeded; fails when there is no answer within 5 s."""
    await asyncio.wait([call], timeout=5)
    assert call.done()
    return call.exception()


async def test_replies_keep_the_order_of_submission(pipeliner: Pipeliner) -> None:
    async def caller(name: int) -> list[int]:
        return [integer(await pipeliner.submit("RPUSH", "list", f"{name}:{turn}")) for turn in range(20)]

    lengths = await asyncio.gather(*(caller(name) for name in range(100)))

    pushed = [octets(value).decode() for value in items(await pipeliner.submit("LRANGE", "list", 0, -1))]
    assert len(pushed) == 2000
    for name, places in enumerate(lengths):
        # Each caller was told the very place its value took, and its values follow each other.
        assert [pushed[place - 1] for place in places] == [f"{name}:{turn}" for turn in range(20)]


async def test_commands_of_one_turn_share_batches_of_bounded_count(pipeliner: Pipeliner) -> None:
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


async def test_an_error_reply_fails_only_its_own_call(pipeliner: Pipeliner) -> None:
    before = pipeliner.submit("SET", "key", "text")
    wrong = pipeliner.submit("LPUSH", "key", "x")
    after = pipeliner.submit("GET", "key")
    assert await before == b"OK"
    with pytest.raises(StoreError, match="WRONGTYPE") as caught:
        await wrong
    assert caught.value.reply_code == "WRONGTYPE"
    assert await after == b"text"
    assert pipeliner.available


async def test_a_script_answers_with_values_and_with_errors(pipeliner: Pipeliner) -> None:
    first, refused, second = (
        pipeliner.run(COUNT, ["number"], [2]),
        pipeliner.run(REFUSE, ["number"], [7]),
        pipeliner.run(COUNT, ["number"], [3]),
    )
    assert [await first, await second] == [2, 5]
    with pytest.raises(ScriptError, match="script refuse: STALE generation 7") as caught:
        await refused
    assert (caught.value.reply_code, caught.value.script) == ("STALE", "refuse")


async def test_a_script_runs_for_each_of_many_in_one_call_and_one_error_is_one_of_its_answers(
    pipeliner: Pipeliner,
) -> None:
    sizes: list[int] = []
    pipeliner.on_batch = lambda seconds, commands: sizes.append(commands)
    await pipeliner.submit("SET", "number 1", "no number")
    sizes.clear()
    many = COMMANDS.batch * 3 // 4
    calls = [pipeliner.run_each(COUNT, [([f"number {n}"], [n]) for n in range(many)]) for _ in range(2)]
    after = pipeliner.submit("GET", "number 2")
    first, second = [await call for call in calls]
    refused = [replies.pop(1) for replies in (first, second)]
    assert first == [n for n in range(many) if n != 1]
    assert second == [2 * n for n in range(many) if n != 1]
    for error in refused:
        assert isinstance(error, ScriptError)
        assert "not an integer" in error.message
    assert await after == b"4"
    assert sizes == [many, many + 1], "a batch holds whole calls, and their commands are what it is bounded in"
    assert pipeliner.available


async def test_a_flushed_script_is_loaded_again_and_runs_once_for_each_of_many(pipeliner: Pipeliner) -> None:
    calls = [(["number"], [1])] * 3
    assert await pipeliner.run_each(COUNT, calls) == [1, 2, 3]
    await pipeliner.submit("SCRIPT", "FLUSH")
    first, second = pipeliner.run_each(COUNT, calls), pipeliner.run_each(COUNT, calls)
    assert [await first, await second] == [[4, 5, 6], [7, 8, 9]]


async def test_a_script_that_the_server_does_not_take_is_an_error_for_each_of_many(pipeliner: Pipeliner) -> None:
    refused = await pipeliner.run_each(BROKEN, [(["number"], [])] * 2)
    assert [isinstance(error, ScriptError) and error.reply_code for error in refused] == ["NOSCRIPT"] * 2
    assert await pipeliner.run_each(COUNT, [(["number"], [1])]) == [1]


async def test_a_call_for_many_fails_as_a_whole_when_the_server_is_frozen(
    own_valkey: EmbeddedValkey, connect: Connect
) -> None:
    pipeliner = await connect(own_valkey.url)
    assert await pipeliner.run_each(COUNT, [(["number"], [1])]) == [1]
    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        with pytest.raises(NotAnswered):
            await pipeliner.run_each(COUNT, [(["number"], [1])] * 2)
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)


async def test_a_script_that_does_not_compile_fails_with_the_reason(pipeliner: Pipeliner) -> None:
    broken, sound = pipeliner.run(BROKEN, ["number"], []), pipeliner.run(COUNT, ["number"], [1])
    with pytest.raises(ScriptError, match=r"script broken: .*compiling"):
        await broken
    assert await sound == 1


async def test_a_call_whose_script_was_flushed_is_told_when_the_rest_of_its_batch_fails(
    own_valkey: EmbeddedValkey, connect: Connect
) -> None:
    """Such a call waits to be repeated while its batch goes on; it was lost for ever when that batch failed."""
    pipeliner, other = await connect(own_valkey.url), await connect(own_valkey.url)
    assert await pipeliner.run(COUNT, ["number"], [1]) == 1
    await other.submit("SCRIPT", "FLUSH")
    flushed = pipeliner.run(COUNT, ["number"], [1]), pipeliner.run_each(COUNT, [(["number"], [1])] * 2)
    endless = pipeliner.submit("BLPOP", "a list that stays empty", 0)
    assert isinstance(await failure(endless), NotAnswered)
    for call in flushed:
        error = await failure(call)
        assert isinstance(error, BusUnavailable)
        assert not isinstance(error, NotAnswered), "the server has said that it did not execute these"
    assert await pipeliner.wait_available(5)
    assert await pipeliner.run(COUNT, ["number"], [1]) == 2, "none of them was executed"


async def test_a_call_that_has_waited_too_long_for_a_slow_server_fails_unsent(own_valkey: EmbeddedValkey) -> None:
    pipeliner = Pipeliner(own_valkey.url, batch_timeout=10, waiting_timeout=0.2)
    pipeliner.start()
    try:
        assert await pipeliner.wait_available(10)
        slow = pipeliner.submit("BLPOP", "a list that stays empty", 1)
        while pipeliner.backlog:
            await asyncio.sleep(0)
        late: list[asyncio.Future[Any]] = [
            pipeliner.submit("SET", "key", "value"),
            pipeliner.submit_each([("SET", "key", "value")] * 2, priority=Priority.BACKGROUND),
        ]
        assert await slow is None
        for call in late:
            error = await failure(call)
            assert isinstance(error, BusUnavailable)
            assert "has waited for 0.2 s" in error.message
            assert not isinstance(error, NotAnswered)
        assert pipeliner.available
        assert await pipeliner.submit("EXISTS", "key") == 0
    finally:
        await pipeliner.aclose()


async def test_many_commands_go_as_one_call_and_one_error_is_one_of_its_answers(pipeliner: Pipeliner) -> None:
    await pipeliner.submit("SET", "text", "x")
    commands = [("RPUSH", "list", "a"), ("RPUSH", "text", "b"), ("RPUSH", "list", "c")]
    first, wrong, last = await pipeliner.submit_each(commands)
    assert (first, last) == (1, 2)
    assert isinstance(wrong, StoreError)


async def test_a_flushed_script_is_loaded_again_and_runs_once(pipeliner: Pipeliner) -> None:
    assert await pipeliner.run(COUNT, ["number"], [1]) == 1
    await pipeliner.submit("SCRIPT", "FLUSH")
    calls = [pipeliner.run(COUNT, ["number"], [1]) for _ in range(300)]
    assert await asyncio.gather(*calls) == list(range(2, 302))


async def test_a_restarted_server_gets_its_scripts_again(
    own_valkey: EmbeddedValkey, connect: Connect, until: Until
) -> None:
    pipeliner = await connect(own_valkey.url)
    assert await pipeliner.run(COUNT, ["number"], [1]) == 1
    os.kill(own_valkey.pid, signal.SIGKILL)
    await until(lambda: not own_valkey.running)
    await own_valkey.restart()
    # The dead connection is noticed before anything is sent on it, or the breaker opens and closes again.
    assert await failure(pipeliner.submit("PING")) is None or await pipeliner.wait_available(5)
    assert await pipeliner.run(COUNT, ["number"], [1]) == 2


async def test_what_was_acknowledged_outlives_kill_9(
    own_valkey: EmbeddedValkey, connect: Connect, until: Until
) -> None:
    pipeliner = await connect(own_valkey.url)
    changes: list[bool] = []
    pipeliner.on_change.append(changes.append)
    acknowledged: set[int] = set()
    failed = asyncio.Event()

    async def write(number: int) -> None:
        try:
            await pipeliner.submit("SADD", "numbers", number)
            acknowledged.add(number)
        except BusUnavailable:
            failed.set()

    async def write_until_it_fails() -> None:
        number = 0
        while not failed.is_set():
            await asyncio.gather(*(write(number + more) for more in range(50)))
            number += 50

    writer = asyncio.create_task(write_until_it_fails())
    await until(lambda: len(acknowledged) >= 500)
    os.kill(own_valkey.pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        await writer
    assert not pipeliner.available
    await own_valkey.restart()
    assert await pipeliner.wait_available(5)
    kept = {integer(number) for number in items(await pipeliner.submit("SMEMBERS", "numbers"))}
    assert acknowledged <= kept
    assert changes == [False, True]


async def test_a_frozen_server_costs_one_second_once(own_valkey: EmbeddedValkey, connect: Connect) -> None:
    pipeliner = await connect(own_valkey.url)
    changes: list[bool] = []
    pipeliner.on_change.append(changes.append)
    loop = asyncio.get_running_loop()
    os.kill(own_valkey.pid, signal.SIGSTOP)
    asked = loop.time()
    calls = [pipeliner.submit("INCR", "number") for _ in range(COMMANDS.batch + 1)]
    with pytest.raises(BusUnavailable, match="did not answer within 1 s; the outcome of the call is unknown"):
        await calls[0]
    assert 0.9 < loop.time() - asked < 3
    with pytest.raises(BusUnavailable, match="not sent"):
        await calls[-1]
    asked = loop.time()
    for _ in range(1000):
        assert isinstance(pipeliner.submit("INCR", "number").exception(), BusUnavailable)
    assert loop.time() - asked < 1  # all thousand together: nobody waits for a frozen server
    # TCP still connects (the kernel accepts); the probe must not take that for life.
    assert not await pipeliner.wait_available(2.5)
    assert "did not answer" in pipeliner.last_error.message

    os.kill(own_valkey.pid, signal.SIGCONT)
    assert await pipeliner.wait_available(5)
    assert changes == [False, True]
    # Nothing was repeated: what the frozen server had in its socket ran at most once.
    assert integer(await pipeliner.submit("INCRBY", "number", 0)) <= COMMANDS.batch


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


async def test_the_backlog_is_bounded_in_bytes(pipeliner: Pipeliner) -> None:
    value = b"x" * (COMMANDS.waiting_bytes // 4)
    calls = [pipeliner.submit("ECHO", value) for _ in range(3)]
    surplus = pipeliner.submit("ECHO", value + value)
    assert "backlog full" in str(surplus.exception())
    await asyncio.gather(*calls)
    assert pipeliner.backlog == 0
    assert await pipeliner.submit("ECHO", value) == value  # the bytes were counted back


async def test_each_batch_takes_some_of_every_priority_the_first_priority_first(
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
    assert max(sizes[1:]) == most
    order = items(await pipeliner.submit("LRANGE", "order", 0, 3))
    assert order == [b"control", b"results", b"commands", b"list"]


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


async def test_batches_are_bounded_by_the_bytes_that_are_expected_back(pipeliner: Pipeliner) -> None:
    """Small requests, large replies: 512 KiB each, of which a batch may bring 4 MiB."""
    sizes: list[int] = []
    await pipeliner.submit("SET", "large", b"x" * (512 << 10))
    pipeliner.on_batch = lambda seconds, commands: sizes.append(commands)
    calls = [pipeliner.submit("GET", "large", expected=512 << 10) for _ in range(20)]
    calls.append(pipeliner.submit("GET", "large", expected=COMMANDS.back + 1))
    assert all(len(octets(reply)) == 512 << 10 for reply in await asyncio.gather(*calls))
    assert sizes == [8, 8, 4, 1]


async def test_a_batch_whose_replies_keep_coming_is_not_a_lost_server(
    own_valkey: EmbeddedValkey, connect: Connect
) -> None:
    """Replies of which nobody expected that much, over a slow line: together they take longer than the time-out."""
    operator = await connect(own_valkey.url)
    size = 64 << 10
    await operator.submit("SET", "large", b"x" * size)
    steps = 6
    pause = 0.6  # of PROGRESS replies each: the batch as a whole takes some three times its time-out

    async def trickle(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        passed = 0
        while data := await source.read(65_536):
            sink.write(data)
            passed += len(data)
            if passed >= PROGRESS * size:
                passed -= PROGRESS * size
                await asyncio.sleep(pause)
        sink.close()

    async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        sink.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, far = await asyncio.open_unix_connection(own_valkey.socket_path)
        await asyncio.gather(forward(reader, far), trickle(back, writer), return_exceptions=True)
        await asyncio.wait([asyncio.create_task(end.wait_closed()) for end in (far, writer)], timeout=5)
        over.set()

    over = asyncio.Event()
    async with await asyncio.start_server(relay, "127.0.0.1", 0) as slow:
        pipeliner = await connect(f"redis://127.0.0.1:{slow.sockets[0].getsockname()[1]}")
        calls = [pipeliner.submit("GET", "large") for _ in range(steps * PROGRESS)]
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert all(len(octets(reply)) == size for reply in await asyncio.gather(*calls))
        assert loop.time() - began > 1.0  # longer than a silent server is waited for
        assert loop.time() - began < BATCH_PATIENCE + 25
        assert pipeliner.trips == 0
        await pipeliner.aclose()
        async with asyncio.timeout(5):
            await over.wait()


async def test_abandoned_calls_are_silent_in_an_outage(own_valkey: EmbeddedValkey, connect: Connect) -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, facts: complaints.append(facts["message"]))
    pipeliner = await connect(own_valkey.url)
    os.kill(own_valkey.pid, signal.SIGSTOP)
    for _ in range(300):
        pipeliner.submit("INCR", "number")
    cancelled = pipeliner.submit("INCR", "number")
    cancelled.cancel()
    assert await failure(pipeliner.submit("PING")) is not None
    pipeliner.submit("PING")  # the breaker is open
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_a_cancelled_call_does_not_disturb_its_neighbours(pipeliner: Pipeliner) -> None:
    first, given_up, last = (pipeliner.submit("INCR", "number") for _ in range(3))
    given_up.cancel()
    assert [await first, await last] == [1, 3]


async def test_a_server_that_hung_up_between_batches_costs_nothing(
    pipeliner: Pipeliner, connect: Connect, valkey: EmbeddedValkey
) -> None:
    changes: list[bool] = []
    pipeliner.on_change.append(changes.append)
    own = await pipeliner.submit("CLIENT", "ID")
    other = await connect(valkey.url)
    assert await other.submit("CLIENT", "KILL", "ID", integer(own)) == 1
    await other.submit("PING")  # our end of the killed connection has been told by now
    assert await pipeliner.submit("SET", "key", "value") == b"OK"
    assert changes == []


async def test_without_a_server_calls_fail_at_once_and_say_why() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        pipeliner = Pipeliner(f"redis://:secret@127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(BusUnavailable, match="not connected yet"):
            await pipeliner.submit("PING")
        pipeliner.start()
        assert not await pipeliner.wait_available(0.3)
        with pytest.raises(BusUnavailable, match=r"127\.0\.0\.1:\d+ is not available") as caught:
            await pipeliner.submit("PING")
        assert "secret" not in str(caught.value)
        await pipeliner.aclose()
        with pytest.raises(BusUnavailable, match="this node has closed"):
            await pipeliner.submit("PING")


async def test_a_server_is_reached_over_a_way_on_which_connecting_takes_longer_than_a_second(
    own_valkey: EmbeddedValkey, connect: Connect
) -> None:
    """As it is for a process that is short of CPU: each turn takes 0.6 s, and connecting takes some of them."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float) -> None:
        while data := await source.read(65_536):
            await asyncio.sleep(delay)
            sink.write(data)
        sink.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, far = await asyncio.open_unix_connection(own_valkey.socket_path)
        await asyncio.gather(carry(reader, far, 0.6), carry(back, writer, 0.0), return_exceptions=True)

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as slow:
        pipeliner = Pipeliner(f"redis://127.0.0.1:{slow.sockets[0].getsockname()[1]}", batch_timeout=20)
        pipeliner.start()
        try:
            assert await pipeliner.wait_available(20), pipeliner.last_error
            assert await pipeliner.submit("PING") in (b"PONG", "PONG")
        finally:
            await pipeliner.aclose()


async def test_a_server_that_loads_its_data_is_waited_for(tmp_path: Path, connect: Connect, until: Until) -> None:
    async with EmbeddedValkey(tmp_path) as server:
        pipeliner = await connect(server.url)
        await pipeliner.submit("EVAL", "for n = 1, 20000 do redis.call('SET', 'key' .. n, n) end", 0)
    # Some 150 us a key: 3 s of loading, during which it answers each 1024 keys, and PING with LOADING.
    slow = ["--key-load-delay", "100"]
    server = EmbeddedValkey(tmp_path, options=slow)
    starting = asyncio.create_task(server.start())
    try:
        pipeliner.submit("PING")  # an idle connection that has died is noticed by the next call
        await until(lambda: "it is loading its data; wait" in pipeliner.last_error.message)
        assert not starting.done()
        assert not pipeliner.available
        async with asyncio.timeout(30):
            await starting
        assert await pipeliner.wait_available(5)
        assert await pipeliner.submit("DBSIZE") == 20000
    finally:
        starting.cancel()
        await asyncio.wait([starting])
        await server.stop()


async def test_closing_fails_the_calls_that_wait(own_valkey: EmbeddedValkey, connect: Connect) -> None:
    pipeliner = await connect(own_valkey.url)
    os.kill(own_valkey.pid, signal.SIGSTOP)
    out = pipeliner.submit("PING")
    await asyncio.sleep(0)
    await pipeliner.aclose()
    with pytest.raises(BusUnavailable, match="this node has closed"):
        await out


async def test_a_full_server_is_unavailable_not_wrong(own_valkey: EmbeddedValkey, connect: Connect) -> None:
    pipeliner = await connect(own_valkey.url)
    await pipeliner.submit("CONFIG", "SET", "maxmemory", 1)
    for call in (pipeliner.submit("SET", "key", "value"), pipeliner.run(COUNT, ["number"], [1])):
        with pytest.raises(BusUnavailable, match="its memory is full; raise maxmemory"):
            await call
    await pipeliner.submit("CONFIG", "SET", "maxmemory", 0)
    assert await pipeliner.run(COUNT, ["number"], [1]) == 1


async def test_a_demoted_primary_is_left_until_a_primary_answers(own_valkey: EmbeddedValkey, connect: Connect) -> None:
    pipeliner, operator = await connect(own_valkey.url), await connect(own_valkey.url)
    await operator.submit("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(BusUnavailable, match="point the address at the primary"):
        await pipeliner.submit("SET", "key", "value")
    await operator.submit("REPLICAOF", "NO", "ONE")
    assert pipeliner.trips == 1
    assert await pipeliner.wait_available(5)
    assert await pipeliner.submit("SET", "key", "value") == b"OK"


async def test_password_and_database_of_the_address_are_used(tmp_path: Path, connect: Connect) -> None:
    async with EmbeddedValkey(tmp_path) as open_server:
        operator = await connect(open_server.url)
        await operator.submit("CONFIG", "SET", "requirepass", "s3cret")
        wrong = Pipeliner(f"unix://:wrong@{open_server.socket_path}")
        wrong.start()
        assert not await wrong.wait_available(0.5)
        assert "refuses the password" in wrong.last_error.message
        await wrong.aclose()
        right = await connect(f"unix://:s3cret@{open_server.socket_path}?db=3")
        await right.submit("SET", "key", "value")
        assert b"db=3" in octets(await right.submit("CLIENT", "INFO"))


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1?colour=red", "redis://h?db=x"])
def test_an_unusable_address_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match=r"address of Redis"):
        Pipeliner(url)


def test_the_path_of_a_socket_that_is_too_long_is_a_config_error() -> None:
    Pipeliner(f"unix:///{'x' * (SOCKET_PATH_LIMIT - 1)}?db=1")
    with pytest.raises(ConfigError, match=rf"has {SOCKET_PATH_LIMIT + 1} bytes.*at most {SOCKET_PATH_LIMIT}"):
        Pipeliner(f"unix:///{'x' * SOCKET_PATH_LIMIT}")


async def test_hashes_come_as_flat_lists(pipeliner: Pipeliner) -> None:
    await pipeliner.submit("HSET", "hash", "a", 1, "b", 2.5)
    assert table(await pipeliner.submit("HGETALL", "hash")) == {b"a": b"1", b"b": b"2.5"}
    with pytest.raises(StoreError, match="is not a list"):
        table(await pipeliner.submit("GET", "nothing"))
