"""The pipeliner while its server is frozen, lost, loading, full or demoted, and the addresses that it accepts."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import BusUnavailable, ConfigError, NotAnswered
from fairlead.store.backlog import Priority
from fairlead.store.batch import BATCH_LIMIT, PROGRESS
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.endpoint import SOCKET_PATH_LIMIT
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items, octets

from support.store_calls import COMMANDS, COUNT, Connect, failure
from support.waiting import until


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


async def test_a_restarted_server_gets_its_scripts_again(own_valkey: EmbeddedValkey, connect: Connect) -> None:
    pipeliner = await connect(own_valkey.url)
    assert await pipeliner.run(COUNT, ["number"], [1]) == 1
    os.kill(own_valkey.pid, signal.SIGKILL)
    await until(lambda: not own_valkey.running)
    await own_valkey.restart()
    # The dead connection is noticed before anything is sent on it, or the breaker opens and closes again.
    assert await failure(pipeliner.submit("PING")) is None or await pipeliner.wait_available(5)
    assert await pipeliner.run(COUNT, ["number"], [1]) == 2


async def test_acknowledged_writes_survive_kill_9(own_valkey: EmbeddedValkey, connect: Connect) -> None:
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


async def test_a_frozen_server_delays_calls_by_one_second_only_once(
    own_valkey: EmbeddedValkey, connect: Connect
) -> None:
    pipeliner = await connect(own_valkey.url)
    changes: list[bool] = []
    pipeliner.on_change.append(changes.append)
    loop = asyncio.get_running_loop()
    os.kill(own_valkey.pid, signal.SIGSTOP)
    asked = loop.time()
    calls = [pipeliner.submit("INCR", "number") for _ in range(COMMANDS.batch + 1)]
    with pytest.raises(BusUnavailable, match="did not answer within 1 s; the outcome of the call is unknown"):
        await calls[0]
    assert loop.time() - asked > 0.9
    with pytest.raises(BusUnavailable, match="not sent"):
        await calls[-1]
    for _ in range(1000):
        refused = pipeliner.submit("INCR", "number")
        assert refused.done(), "nobody waits for a frozen server"
        assert isinstance(refused.exception(), BusUnavailable)
    # TCP still connects (the kernel accepts); the probe must not take that for life.
    assert not await pipeliner.wait_available(2.5)
    assert "did not answer" in pipeliner.last_error.message

    os.kill(own_valkey.pid, signal.SIGCONT)
    assert await pipeliner.wait_available(5)
    assert changes == [False, True]
    # Nothing was repeated: what the frozen server had in its socket ran at most once.
    assert integer(await pipeliner.submit("INCRBY", "number", 0)) <= COMMANDS.batch


async def test_a_batch_whose_replies_keep_arriving_does_not_time_out(
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
        assert loop.time() - began < BATCH_LIMIT + 25
        assert pipeliner.trips == 0
        await pipeliner.aclose()
        async with asyncio.timeout(5):
            await over.wait()


async def test_abandoned_calls_log_nothing_in_an_outage(own_valkey: EmbeddedValkey, connect: Connect) -> None:
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


async def test_a_connection_closed_between_batches_loses_no_call(
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


async def test_a_server_that_takes_longer_than_a_second_to_connect_is_reached(
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


async def test_a_server_that_loads_its_data_is_waited_for(tmp_path: Path, connect: Connect) -> None:
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


async def test_a_full_server_is_unavailable(own_valkey: EmbeddedValkey, connect: Connect) -> None:
    pipeliner = await connect(own_valkey.url)
    await pipeliner.submit("CONFIG", "SET", "maxmemory", 1)
    for call in (pipeliner.submit("SET", "key", "value"), pipeliner.run(COUNT, ["number"], [1])):
        with pytest.raises(BusUnavailable, match="is full: it uses all of its maxmemory"):
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
    with pytest.raises(ConfigError, match="Redis URL"):
        Pipeliner(url)


def test_a_socket_path_that_is_too_long_is_a_config_error() -> None:
    Pipeliner(f"unix:///{'x' * (SOCKET_PATH_LIMIT - 1)}?db=1")
    with pytest.raises(ConfigError, match=rf"has {SOCKET_PATH_LIMIT + 1} bytes.*at most {SOCKET_PATH_LIMIT}"):
        Pipeliner(f"unix:///{'x' * SOCKET_PATH_LIMIT}")
