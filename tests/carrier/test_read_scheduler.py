"""Read budgets on real sockets: nothing is lost, other connections do not wait, and only a flood is closed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Connection
from fairlead.carrier.reading import account
from fairlead.carrier.reading import scheduler as module
from fairlead.carrier.reading.account import CREDIT, ReadBudget
from fairlead.carrier.reading.scheduler import SLICE, ReadScheduler
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.listeners import RecordingListener
from support.carrier.servers import AttachedApp, Dial, Serve, Until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT, BINARY, PING = 0x81, 0x82, 0x89
MIB = 1 << 20


class Metered(RecordingListener):
    """Messages that begin with `!` count as asked for, and those that begin with `e` as events."""

    def __init__(self, *, echo: bool = False) -> None:
        super().__init__(echo=echo)
        self.asked = 0
        self.excesses: list[str] = []

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        super().on_message(connection, message)
        if message[:1] == "!":
            self.asked += 1
        elif message[:1] == "e":
            self.asked += 1
            connection.charge(events=1)

    def on_excess(self, connection: Connection, reason: str) -> None:
        self.excesses.append(reason)
        connection.close(4413, reason)


class Door:
    """A server whose connections share a read scheduler, and the listeners that it has made."""

    def __init__(self, port: int, read_scheduler: ReadScheduler) -> None:
        self.port = port
        self.read_scheduler = read_scheduler
        self.all: list[Any] = []
        self.make: Callable[[], Any] = lambda: Metered(echo=False)

    def __call__(self) -> Any:
        self.all.append(self.make())
        return self.all[-1]

    def sums(self) -> None:
        """The read scheduler counts what its connections keep."""
        accounts = self.read_scheduler._accounts.values()
        assert self.read_scheduler.kept == sum(account.kept for account in accounts)
        assert all(account.kept == account.connection.kept for account in accounts)


Open = Callable[..., Awaitable[Door]]


@pytest.fixture
def opened(serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel) -> Open:
    async def start(budget: ReadBudget, max_message: int = MIB, close_timeout: float = 5.0) -> Door:
        door = Door(0, ReadScheduler(budget))
        context = ConnectionContext(
            timer_wheel, max_message, close_timeout=close_timeout, read_scheduler=door.read_scheduler
        )
        door.port = await serve(attached_app(door), context=context)
        return door

    return start


async def test_a_burst_above_the_budget_waits_and_loses_nothing(opened: Open, dial: Dial, until: Until) -> None:
    door = await opened(ReadBudget(messages=100.0))
    raw = await dial(door.port)
    for number in range(1_200):  # the credit is 1,000
        raw.send(TEXT, b"%d" % number)
    await until(lambda: door.read_scheduler.waiting)
    first = len(door.all[0].messages)
    assert first < 1_200
    await until(lambda: len(door.all[0].messages) == 1_200)
    assert door.all[0].messages == [str(number) for number in range(1_200)]
    assert door.all[0].excesses == []
    raw.end()
    await until(lambda: len(door.read_scheduler) == 0)
    assert door.read_scheduler.kept == 0


async def test_a_quiet_link_has_no_account(opened: Open, dial: Dial, until: Until) -> None:
    door = await opened(ReadBudget())
    raw = await dial(door.port)
    for number in range(20):
        raw.send(TEXT, b"%d" % number)
        await until(lambda: len(door.all[0].messages) == number + 1)  # noqa: B023  # awaited at once
    assert len(door.read_scheduler) == 0


@pytest.mark.parametrize("kind", ["pings", "messages", "fragments"])
async def test_a_flood_is_read_at_its_rate_and_does_not_delay_others(
    opened: Open, dial: Dial, until: Until, kind: str
) -> None:
    """Counted, not timed: what came of the flood is no more than its credit and its rate allow, and everybody else is
    answered meanwhile."""
    rate = 200.0
    door = await opened(ReadBudget(messages=rate))
    loop = asyncio.get_running_loop()
    flooder = await dial(door.port)
    door.make = lambda: RecordingListener(echo=True)
    healthy = await dial(door.port)
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
        await until(lambda: door.read_scheduler.waiting)
        for number in range(200):
            healthy.send(TEXT, b"%d" % number)
            assert await healthy.frame() == (0x81, b"%d" % number)
            door.sums()
        while loop.time() - began < 1.5:  # the flood goes on for a while
            await asyncio.sleep(0.05)
        read = {
            "pings": lambda: pongs, "messages": lambda: len(door.all[0].messages),
            "fragments": lambda: len(door.all[0].connection._partial.message),
        }[kind]()  # fmt: skip
        assert 0 < read <= rate * CREDIT + rate * (loop.time() - began + 1.0) + 2 * SLICE
        assert door.all[0].closed == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        flooder.writer.transport.abort()  # what it has written waits to be read at its rate, and would be waited for


async def test_a_server_that_stops_does_not_wait_for_a_flood(
    opened: Open, dial: Dial, until: Until, running: Any
) -> None:
    """A flooder's answer to the close frame is behind its flood, which nobody reads on: it is cut off."""
    door = await opened(ReadBudget(messages=10.0), close_timeout=1.0)
    server, stopped = running[-1]
    raws = [await dial(door.port) for _ in range(5)]
    for raw in raws:
        raw.write(raw.encode(PING, b"x") * 2_000_000)
    await until(lambda: door.read_scheduler.waiting == 5)
    server.should_exit = True
    async with asyncio.timeout(module.STRAIN_LIMIT / 2):
        await asyncio.shield(stopped)
    assert {heard.closed[0][0] for heard in door.all} == {1012}
    for raw in raws:
        raw.writer.transport.abort()


async def test_one_loop_iteration_reads_only_a_slice(opened: Open, dial: Dial, until: Until) -> None:
    """Thousands of messages in one read of the transport: other callbacks of the loop come between each 64."""
    door = await opened(ReadBudget(messages=1e6))
    turn, turns = 0, list[int]()

    class Counting(Metered):
        def on_message(self, connection: Connection, message: bytes | str) -> None:
            super().on_message(connection, message)
            turns.append(turn)

    door.make = Counting
    raw = await dial(door.port)
    raw.write(raw.encode(TEXT, b"x") * 5_000)
    async with asyncio.timeout(20):
        while len(turns) < 5_000:
            turn += 1
            await asyncio.sleep(0)
    assert max(turns.count(one) for one in set(turns)) <= 2 * SLICE, "one slice of a read, and one of a turn"


async def test_messages_that_were_asked_for_are_not_counted(opened: Open, dial: Dial, until: Until) -> None:
    door = await opened(ReadBudget(messages=10.0, bytes=1e9))
    raw = await dial(door.port)
    raw.write(raw.encode(TEXT, b"!") * 3_000)
    await until(lambda: len(door.all[0].messages) == 3_000)
    (account,) = door.read_scheduler._accounts.values()
    assert account.messages > 0
    raw.write(raw.encode(TEXT, b"?") * 150)
    await until(lambda: account.held and account.messages < 0)


async def test_events_and_bytes_have_budgets_of_their_own(opened: Open, dial: Dial, until: Until) -> None:
    door = await opened(ReadBudget(events=20.0, bytes=100_000.0))
    raw = await dial(door.port)
    raw.write(raw.encode(TEXT, b"event") * 210)
    await until(lambda: door.read_scheduler.held)
    assert len(door.all[0].messages) <= 200 + SLICE
    await until(lambda: len(door.all[0].messages) == 210)
    await until(lambda: not door.read_scheduler.waiting)
    held = door.read_scheduler.held
    other = await dial(door.port)
    for _ in range(5):
        other.send(BINARY, bytes(60_000))
    await until(lambda: door.read_scheduler.held > held)
    await until(lambda: len(door.all[1].messages) == 5)
    assert all(not heard.closed for heard in door.all)


@pytest.mark.parametrize("metered", [True, False])
async def test_a_connection_that_stays_at_its_limit_is_closed(
    opened: Open, dial: Dial, until: Until, monkeypatch: pytest.MonkeyPatch, metered: bool
) -> None:
    monkeypatch.setattr(module, "STRAIN_LIMIT", 0.5)
    door = await opened(ReadBudget(messages=10.0))
    if not metered:
        door.make = RecordingListener
    raw = await dial(door.port)
    raw.write(raw.encode(TEXT, b"x") * 50_000)
    code, reason = (4413, "more than 10 messages a second for 0.5 s") if metered else (1008, "more than 10 messages")
    frame = await raw.frame()
    assert frame is not None
    assert (frame[0], int.from_bytes(frame[1][:2], "big")) == (0x88, code)
    assert frame[1][2:].decode().startswith(reason)
    assert await raw.frame() is None, "our half is closed at once despite the flood"
    raw.end()
    await until(lambda: door.all[0].closed)
    assert door.all[0].closed[0][0] == code
    assert len(door.all[0].messages) <= 100 + 2 * SLICE + 50
    await until(lambda: len(door.read_scheduler) == 0)


async def test_a_connection_with_occasional_bursts_is_not_closed(
    opened: Open, dial: Dial, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRAIN_LIMIT", 1.0)
    monkeypatch.setattr(account, "CREDIT", 1.0)
    door = await opened(ReadBudget(messages=1_000.0))
    raw = await dial(door.port)
    for burst in range(1, 4):
        raw.write(raw.encode(TEXT, b"x") * 1_100)  # a little more than the credit
        await until(lambda: len(door.all[0].messages) == 1_100 * burst)  # noqa: B023  # awaited at once
        await until(lambda: len(door.read_scheduler) == 0)
    assert door.all[0].excesses == []


async def test_incomplete_messages_share_a_limit(
    opened: Open, dial: Dial, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty peers withhold the last byte of a megabyte: what is kept has a bound, small messages pass, and when the
    oldest are given up a whole megabyte passes, too."""
    monkeypatch.setattr(module, "STALE", 2.0)
    limit, peers = 4 * MIB, 20
    door = await opened(ReadBudget(incomplete=limit))
    withheld = b"\x82\xff" + MIB.to_bytes(8, "big") + bytes(4) + bytes(MIB - 1)
    raws = [await dial(door.port) for _ in range(peers)]
    door.make = lambda: Metered(echo=True)
    healthy = await dial(door.port)
    for raw in raws:
        raw.write(withheld)
    await until(lambda: door.read_scheduler.waiting >= peers // 2)
    for number in range(50):
        healthy.send(TEXT, b"%d" % number)
        assert await healthy.frame() == (0x81, b"%d" % number)
        door.sums()
        assert door.read_scheduler.kept <= limit + peers * (256 << 10), "each may exceed its part by one read"
    healthy.write(b"\x82\xff" + MIB.to_bytes(8, "big") + bytes(4) + bytes(MIB))
    assert await healthy.frame() == (0x82, bytes(MIB))
    assert [heard.excesses for heard in door.all[:peers] if heard.excesses]
    assert door.all[-1].excesses == []
    for raw in raws:
        raw.end()
    await until(lambda: len(door.read_scheduler) <= 1)


async def test_large_messages_of_many_connections_do_not_wait_for_each_other(
    opened: Open, dial: Dial, until: Until
) -> None:
    """Forty megabytes at once where four fit: each message is delivered, and no connection is closed."""
    limit, peers = 4 * MIB, 40
    door = await opened(ReadBudget(incomplete=limit))
    whole = b"\x82\xff" + MIB.to_bytes(8, "big") + bytes(4) + bytes(MIB)
    raws = [await dial(door.port) for _ in range(peers)]
    for raw in raws:
        raw.write(whole)
    while sum(len(heard.messages) for heard in door.all) < peers:
        await until(lambda: True)
        assert not [heard.excesses for heard in door.all if heard.excesses]
        assert door.read_scheduler.kept <= limit + peers * (256 << 10), "each may exceed its part by one read"
        await asyncio.sleep(0.005)
    assert all(heard.messages == [bytes(MIB)] for heard in door.all)
    for raw in raws:
        raw.end()
    await until(lambda: len(door.read_scheduler) == 0)
    assert (
        door.read_scheduler.kept,
        door.read_scheduler._message_memory._promised,
        len(door.read_scheduler._message_memory),
    ) == (0, 0, 0)


class Incomplete:
    """A connection that keeps half of a message, as the read scheduler sees it."""

    listener = None
    closing = ripe = False
    wanted = unparsed = 0

    def __init__(self) -> None:
        self.kept = 0
        self.released = False

    def feed(self, data: bytes, most: int) -> int:
        self.kept += len(data)
        return 0

    def hold(self) -> bool:
        return False

    def release(self, silent: bool) -> None:
        self.released = True


async def test_incomplete_messages_are_continued_one_per_loop_iteration() -> None:
    """Much data of each may arrive at once: other work must not wait for all of them."""
    read_scheduler = ReadScheduler(ReadBudget(bytes=50_000.0, incomplete=MIB))
    ones: list[Any] = [Incomplete() for _ in range(20)]
    for one in ones:
        read_scheduler.took(one, 0, 100_000)
        read_scheduler.read(one, bytes(2_000))
    assert read_scheduler.waiting == 20
    released = [0]
    async with asyncio.timeout(20):
        while released[-1] < 20:
            await asyncio.sleep(0)
            released.append(sum(one.released for one in ones))
    assert max(after - before for before, after in itertools.pairwise(released)) <= 2
    read_scheduler.stop()


async def test_a_listener_may_pause_and_resume_a_held_connection(opened: Open, dial: Dial, until: Until) -> None:
    door = await opened(ReadBudget(messages=100.0))

    class Pausing(Metered):
        def on_message(self, connection: Connection, message: bytes | str) -> None:
            super().on_message(connection, message)
            if len(self.messages) == 1_100:
                connection.pause_reading()

    door.make = Pausing
    raw = await dial(door.port)
    raw.write(raw.encode(TEXT, b"x") * 1_300)
    await until(lambda: door.read_scheduler.waiting)
    await until(lambda: len(door.all[0].messages) >= 1_100)
    (account,) = door.read_scheduler._accounts.values()
    assert account.held
    assert account.silent
    came = len(door.all[0].messages)
    assert came <= 1_100 + SLICE
    await until(lambda: account.messages > 0)  # its budget is filled, and still it is not read
    assert len(door.all[0].messages) == came
    door.all[0].connection.resume_reading()
    await until(lambda: len(door.all[0].messages) == 1_300)
    await until(lambda: not account.held)


async def test_a_held_connection_can_be_closed_in_order(opened: Open, dial: Dial, until: Until) -> None:
    door = await opened(ReadBudget(messages=10.0))
    raw = await dial(door.port)
    raw.write(raw.encode(TEXT, b"x") * 400)
    await until(lambda: door.read_scheduler.waiting)
    door.all[0].connection.close(4000, "elsewhere")
    assert await raw.frame() == (0x88, (4000).to_bytes(2, "big") + b"elsewhere")
    raw.send(0x88, (4000).to_bytes(2, "big"))
    assert await raw.frame() is None
    assert door.all[0].closed == [(4000, "elsewhere")]
    assert len(door.read_scheduler) == 0


async def test_the_connection_that_has_used_the_least_is_read_first(opened: Open, dial: Dial, until: Until) -> None:
    """Ten peers whose messages take long, and one that has more than a slice, too: it is through long before them."""
    door = await opened(ReadBudget(messages=1e6))

    class Slow(Metered):
        def on_message(self, connection: Connection, message: bytes | str) -> None:
            super().on_message(connection, message)
            until = time.perf_counter() + 0.0002
            while time.perf_counter() < until:
                pass

    door.make = Slow
    raws = [await dial(door.port) for _ in range(10)]
    for raw in raws:
        raw.write(raw.encode(TEXT, b"x") * 1_500)
    await until(lambda: door.read_scheduler.waiting == 10)
    door.make = Metered
    light = await dial(door.port)
    light.write(light.encode(TEXT, b"y") * 1_000)
    await until(lambda: len(door.all[10].messages) == 1_000)
    assert sum(len(heard.messages) for heard in door.all[:10]) < 10 * 1_500
    for raw in raws:
        raw.writer.transport.abort()


async def test_a_foreign_asgi_server_is_not_asked_for_more(
    foreign: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, dial: Dial, until: Until
) -> None:
    door = Door(0, ReadScheduler(ReadBudget(messages=50.0)))
    door.port = await foreign(attached_app(door, ConnectionContext(timer_wheel, read_scheduler=door.read_scheduler)))
    raw = await dial(door.port)
    for number in range(600):
        raw.send(TEXT, b"%d" % number)
    await until(lambda: door.read_scheduler.waiting)
    assert len(door.all[0].messages) <= 502
    await until(lambda: len(door.all[0].messages) == 600)
    assert door.all[0].messages == [str(number) for number in range(600)]
    raw.end()
    await until(lambda: len(door.read_scheduler) == 0)


async def test_slow_readers_are_counted(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, dial: Dial, until: Until
) -> None:
    slow: set[Connection] = set()
    context = ConnectionContext(timer_wheel, max_buffered=64 * MIB, slow=slow)
    door = Door(0, ReadScheduler())
    door.port = await serve(attached_app(door), context=context)
    raw = await dial(door.port)
    await until(lambda: door.all and door.all[0].connection)
    connection = door.all[0].connection
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
    await until(lambda: door.all[0].closed)
    assert slow == set()
