"""Read budgets on real sockets: nothing is lost, and other connections do not wait."""

from __future__ import annotations

import asyncio
import time

import pytest

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Connection
from fairlead.carrier.reading.account import CREDIT, ReadBudget
from fairlead.carrier.reading.scheduler import SLICE, ReadScheduler
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.listeners import RecordingListener
from support.carrier.scheduled_listeners import Listen, MeteredListener, ScheduledListeners
from support.carrier.servers import AttachedApp, Dial, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT, BINARY, PING = 0x81, 0x82, 0x89
MIB = 1 << 20


async def test_a_burst_above_the_budget_waits_and_loses_nothing(listen: Listen, dial: Dial) -> None:
    listeners = await listen(ReadBudget(messages=100.0))
    raw = await dial(listeners.port)
    for number in range(1_200):  # the credit is 1,000
        raw.send(TEXT, b"%d" % number)
    await until(lambda: listeners.read_scheduler.waiting)
    first = len(listeners.all[0].messages)
    assert first < 1_200
    await until(lambda: len(listeners.all[0].messages) == 1_200)
    assert listeners.all[0].messages == [str(number) for number in range(1_200)]
    assert listeners.all[0].excesses == []
    raw.end()
    await until(lambda: len(listeners.read_scheduler) == 0)
    assert listeners.read_scheduler.kept == 0


async def test_a_quiet_link_has_no_account(listen: Listen, dial: Dial) -> None:
    listeners = await listen(ReadBudget())
    raw = await dial(listeners.port)
    for number in range(20):
        raw.send(TEXT, b"%d" % number)
        await until(lambda: len(listeners.all[0].messages) == number + 1)  # noqa: B023  # awaited at once
    assert len(listeners.read_scheduler) == 0


@pytest.mark.parametrize("kind", ["pings", "messages", "fragments"])
async def test_a_flood_is_read_at_its_rate_and_does_not_delay_others(listen: Listen, dial: Dial, kind: str) -> None:
    """Counted, not timed: what came of the flood is no more than its credit and its rate allow, and everybody else is
    answered meanwhile."""
    rate = 200.0
    listeners = await listen(ReadBudget(messages=rate))
    loop = asyncio.get_running_loop()
    flooder = await dial(listeners.port)
    listeners.make = lambda: RecordingListener(echo=True)
    healthy = await dial(listeners.port)
    pongs = 0
    if kind == "fragments":
        flooder.send(0x02, b"")
    one = {"pings": flooder.encode(PING, b"x"), "messages": flooder.encode(TEXT, b"x"),
           "fragments": flooder.encode(0x00, b"x")}[kind]  # fmt: skip
    began = loop.time()

    async def flood() -> None:
        while True:
            flooder.write(one * 5_000)
            await flooder.writer.drain()

    async def hear() -> None:
        nonlocal pongs
        while await flooder.frame():
            pongs += 1

    tasks = [asyncio.create_task(flood()), asyncio.create_task(hear())]
    try:
        await until(lambda: listeners.read_scheduler.waiting)
        for number in range(200):
            healthy.send(TEXT, b"%d" % number)
            assert await healthy.frame() == (0x81, b"%d" % number)
            listeners.check_sums()
        while loop.time() - began < 1.5:  # the flood goes on for a while
            await asyncio.sleep(0.05)
        read = {
            "pings": lambda: pongs, "messages": lambda: len(listeners.all[0].messages),
            "fragments": lambda: len(listeners.all[0].connection._partial.message),
        }[kind]()  # fmt: skip
        assert 0 < read <= rate * CREDIT + rate * (loop.time() - began + 1.0) + 2 * SLICE
        assert listeners.all[0].closed == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        flooder.writer.transport.abort()  # what it has written waits to be read at its rate, and would be waited for


async def test_one_loop_iteration_reads_only_a_slice(listen: Listen, dial: Dial) -> None:
    """Thousands of messages in one read of the transport: other callbacks of the loop come between each 64."""
    listeners = await listen(ReadBudget(messages=1e6))
    turn, turns = 0, list[int]()

    class TurnListener(MeteredListener):
        def on_message(self, connection: Connection, message: bytes | str) -> None:
            super().on_message(connection, message)
            turns.append(turn)

    listeners.make = TurnListener
    raw = await dial(listeners.port)
    raw.write(raw.encode(TEXT, b"x") * 5_000)
    async with asyncio.timeout(20):
        while len(turns) < 5_000:
            turn += 1
            await asyncio.sleep(0)
    assert max(turns.count(one) for one in set(turns)) <= 2 * SLICE, "one slice of a read, and one of a turn"


async def test_messages_that_were_asked_for_are_not_counted(listen: Listen, dial: Dial) -> None:
    listeners = await listen(ReadBudget(messages=10.0, bytes=1e9))
    raw = await dial(listeners.port)
    raw.write(raw.encode(TEXT, b"!") * 3_000)
    await until(lambda: len(listeners.all[0].messages) == 3_000)
    (account,) = listeners.read_scheduler._accounts.values()
    assert account.messages > 0
    raw.write(raw.encode(TEXT, b"?") * 150)
    await until(lambda: account.held and account.messages < 0)


async def test_events_and_bytes_have_budgets_of_their_own(listen: Listen, dial: Dial) -> None:
    listeners = await listen(ReadBudget(events=20.0, bytes=100_000.0))
    raw = await dial(listeners.port)
    raw.write(raw.encode(TEXT, b"event") * 210)
    await until(lambda: listeners.read_scheduler.held)
    assert len(listeners.all[0].messages) <= 200 + SLICE
    await until(lambda: len(listeners.all[0].messages) == 210)
    await until(lambda: not listeners.read_scheduler.waiting)
    held = listeners.read_scheduler.held
    other = await dial(listeners.port)
    for _ in range(5):
        other.send(BINARY, bytes(60_000))
    await until(lambda: listeners.read_scheduler.held > held)
    await until(lambda: len(listeners.all[1].messages) == 5)
    assert all(not listener.closed for listener in listeners.all)


async def test_the_connection_that_has_used_the_least_is_read_first(listen: Listen, dial: Dial) -> None:
    """Ten peers whose messages take long, and one that has more than a slice, too: it is through long before them."""
    listeners = await listen(ReadBudget(messages=1e6))

    class SlowListener(MeteredListener):
        def on_message(self, connection: Connection, message: bytes | str) -> None:
            super().on_message(connection, message)
            until = time.perf_counter() + 0.0002
            while time.perf_counter() < until:
                pass

    listeners.make = SlowListener
    raws = [await dial(listeners.port) for _ in range(10)]
    for raw in raws:
        raw.write(raw.encode(TEXT, b"x") * 1_500)
    await until(lambda: listeners.read_scheduler.waiting == 10)
    listeners.make = MeteredListener
    light = await dial(listeners.port)
    light.write(light.encode(TEXT, b"y") * 1_000)
    await until(lambda: len(listeners.all[10].messages) == 1_000)
    assert sum(len(listener.messages) for listener in listeners.all[:10]) < 10 * 1_500
    for raw in raws:
        raw.writer.transport.abort()


async def test_a_foreign_asgi_server_is_not_asked_for_more(
    foreign: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, dial: Dial
) -> None:
    listeners = ScheduledListeners(0, ReadScheduler(ReadBudget(messages=50.0)))
    context = ConnectionContext(timer_wheel, read_scheduler=listeners.read_scheduler)
    listeners.port = await foreign(attached_app(listeners, context))
    raw = await dial(listeners.port)
    for number in range(600):
        raw.send(TEXT, b"%d" % number)
    await until(lambda: listeners.read_scheduler.waiting)
    assert len(listeners.all[0].messages) <= 502
    await until(lambda: len(listeners.all[0].messages) == 600)
    assert listeners.all[0].messages == [str(number) for number in range(600)]
    raw.end()
    await until(lambda: len(listeners.read_scheduler) == 0)


async def test_slow_readers_are_counted(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, dial: Dial
) -> None:
    slow: set[Connection] = set()
    context = ConnectionContext(timer_wheel, max_buffered=64 * MIB, slow=slow)
    listeners = ScheduledListeners(0, ReadScheduler())
    listeners.port = await serve(attached_app(listeners), context=context)
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.all[0].connection)
    connection = listeners.all[0].connection
    while not connection.congested:
        connection.send(bytes(MIB))
        await asyncio.sleep(0)
    assert slow == {connection}
    while connection.congested:
        await raw.frame()
    assert slow == set()
    while not connection.congested:
        connection.send(bytes(MIB))
        await asyncio.sleep(0)
    raw.writer.transport.abort()
    await until(lambda: listeners.all[0].closed)
    assert slow == set()
