"""Incomplete messages of many connections share a limit, and none waits for all the others."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from fairlead.carrier.reading import scheduler as module
from fairlead.carrier.reading.account import ReadBudget
from fairlead.carrier.reading.scheduler import ReadScheduler

from support.carrier.scheduled_listeners import Listen, MeteredListener
from support.carrier.servers import Dial
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT, BINARY, PING = 0x81, 0x82, 0x89
MIB = 1 << 20


async def test_incomplete_messages_share_a_limit(listen: Listen, dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty peers withhold the last byte of a megabyte: what is kept has a bound, small messages pass, and when the
    oldest are given up a whole megabyte passes, too."""
    monkeypatch.setattr(module, "STALE", 5.0)
    limit, peers = 4 * MIB, 20
    listeners = await listen(ReadBudget(incomplete=limit))
    withheld = b"\x82\xff" + MIB.to_bytes(8, "big") + bytes(4) + bytes(MIB - 1)
    raws = [await dial(listeners.port) for _ in range(peers)]
    listeners.make = lambda: MeteredListener(echo=True)
    healthy = await dial(listeners.port)
    for raw in raws:
        raw.write(withheld)
    await until(lambda: listeners.read_scheduler.waiting >= peers // 2)
    for number in range(50):
        healthy.send(TEXT, b"%d" % number)
        assert await healthy.frame() == (0x81, b"%d" % number)
        listeners.check_sums()
        assert listeners.read_scheduler.kept <= limit + peers * (256 << 10), "each may exceed its part by one read"
    await until(lambda: any(listener.excesses for listener in listeners.all))
    healthy.write(b"\x82\xff" + MIB.to_bytes(8, "big") + bytes(4) + bytes(MIB))
    assert await healthy.frame() == (0x82, bytes(MIB))
    assert [listener.excesses for listener in listeners.all[:peers] if listener.excesses]
    assert listeners.all[-1].excesses == []
    for raw in raws:
        raw.end()
    await until(lambda: len(listeners.read_scheduler) <= 1)


async def test_large_messages_of_many_connections_do_not_wait_for_each_other(listen: Listen, dial: Dial) -> None:
    """Forty megabytes at once where four fit: each message is delivered, and no connection is closed."""
    limit, peers = 4 * MIB, 40
    listeners = await listen(ReadBudget(incomplete=limit))
    whole = b"\x82\xff" + MIB.to_bytes(8, "big") + bytes(4) + bytes(MIB)
    raws = [await dial(listeners.port) for _ in range(peers)]
    for raw in raws:
        raw.write(whole)
    async with asyncio.timeout(60):
        while sum(len(listener.messages) for listener in listeners.all) < peers:
            assert not [listener.excesses for listener in listeners.all if listener.excesses]
            assert listeners.read_scheduler.kept <= limit + peers * (256 << 10), "each may exceed its part by one read"
            await asyncio.sleep(0.005)
    assert all(listener.messages == [bytes(MIB)] for listener in listeners.all)
    for raw in raws:
        raw.end()
    await until(lambda: len(listeners.read_scheduler) == 0)
    assert (
        listeners.read_scheduler.kept,
        listeners.read_scheduler._message_memory._promised,
        len(listeners.read_scheduler._message_memory),
    ) == (0, 0, 0)


class Incomplete:
    """A connection that keeps half of a message, as the read scheduler sees it."""

    listener = None
    closing = keeps_frames = False
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

    def cut(self, code: int, reason: str) -> None:
        self.closing, self.kept = True, 0


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


async def test_the_time_in_which_the_process_did_not_run_makes_no_message_stale() -> None:
    """A process that was frozen, or got no processor, has read nothing meanwhile: its peers are not late."""
    now = 1000.0
    read_scheduler = ReadScheduler(ReadBudget(incomplete=64 << 10), lambda: now)
    ones: list[Any] = [Incomplete() for _ in range(8)]
    for one in ones:
        read_scheduler.read(one, bytes(32 << 10))
    now += 6 * module.STALE
    read_scheduler._tick()
    assert read_scheduler.waiting > 0
    assert not [one for one in ones if one.closing]
    for _ in range(int(module.STALE / module.TICK) + 1):
        now += module.TICK
        read_scheduler._tick()
    assert [one for one in ones if one.closing]
    read_scheduler.stop()
