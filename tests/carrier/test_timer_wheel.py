"""The timer wheel: deadlines in order, silence in whole periods."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from fairlead.carrier.timer_wheel import BUCKETS, STRIDE, VISITS, TimeoutQueue, TimerWheel


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_deadlines_expire_in_order_and_once() -> None:
    clock, gone = Clock(), list[str]()
    deadline = TimeoutQueue(5.0, clock)
    deadline.add("a", gone.append)
    clock.now = 102.0
    deadline.add("b", gone.append)
    deadline.expire(104.9)
    assert gone == []
    deadline.expire(105.0)
    assert gone == ["a"]
    deadline.expire(200.0)
    deadline.expire(300.0)
    assert gone == ["a", "b"]
    assert len(deadline) == 0


def test_a_deadline_may_be_discarded_or_renewed() -> None:
    clock, gone = Clock(), list[str]()
    deadline = TimeoutQueue(5.0, clock)
    for name in ("a", "b", "c"):
        deadline.add(name, gone.append)
    deadline.discard("b")
    deadline.discard("never there")
    clock.now = 103.0
    deadline.add("a", gone.append)
    assert "a" in deadline
    assert "b" not in deadline
    deadline.expire(106.0)
    assert gone == ["c"]
    deadline.expire(108.0)
    assert gone == ["c", "a"]


def test_an_action_may_discard_and_add_others(caplog: pytest.LogCaptureFixture) -> None:
    clock, gone = Clock(), list[str]()
    deadline = TimeoutQueue(1.0, clock)

    def act(name: str) -> None:
        gone.append(name)
        deadline.discard("b")
        clock.now = 200.0
        deadline.add("later", gone.append)

    def fail(name: str) -> None:
        gone.append(name)
        raise RuntimeError("on purpose")

    deadline.add("a", act)
    deadline.add("b", gone.append)
    deadline.add("c", fail)
    deadline.add("d", gone.append)
    with caplog.at_level(logging.CRITICAL + 1, "fairlead.carrier"):
        deadline.expire(150.0)
    assert gone == ["a", "c", "d"]
    assert "later" in deadline


class Watched:
    def __init__(self) -> None:
        self.visits = 0

    def visit(self) -> None:
        self.visits += 1


class SlowWatched(Watched):
    """A visit takes a millisecond of its clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def visit(self) -> None:
        super().visit()
        self._clock.now += 0.001


async def test_every_connection_is_visited_four_times_a_period() -> None:
    async with TimerWheel(silence=0.8, tick=0.02) as timer_wheel:
        watched = [Watched() for _ in range(300)]
        for one in watched:
            timer_wheel.watch(one)
        assert len(timer_wheel) == 300
        async with asyncio.timeout(20):
            while min(one.visits for one in watched) < 2 * VISITS:  # visits have no event
                await asyncio.sleep(0.01)
        assert max(one.visits for one in watched) - min(one.visits for one in watched) <= 1
        for one in watched[:299]:
            timer_wheel.unwatch(one)
        assert len(timer_wheel) == 1


async def test_a_group_is_visited_like_single_connections() -> None:
    class Table:
        def __init__(self) -> None:
            self.members = [Watched() for _ in range(300)]

        @property
        def connections(self) -> int:
            return len(self.members)

        def part(self, number: int, parts: int) -> list[Watched]:
            return self.members[number::parts]

    table, alone = Table(), Watched()
    async with TimerWheel(silence=0.8, tick=0.02) as timer_wheel:
        timer_wheel.watch_group(table)
        timer_wheel.watch(alone)
        assert len(timer_wheel) == 301
        everyone = [*table.members, alone]
        async with asyncio.timeout(20):
            while min(one.visits for one in everyone) < 2 * VISITS:  # visits have no event
                await asyncio.sleep(0.01)
        assert max(one.visits for one in everyone) - min(one.visits for one in everyone) <= 1
        timer_wheel.unwatch_group(table)
        assert len(timer_wheel) == 1


async def test_a_short_period_visits_each_at_most_once_a_tick() -> None:
    """Whatever the numbers, a tick is bounded: a stalled loop does not count silence faster than it ticks."""
    clock = Clock()
    timer_wheel = TimerWheel(silence=0.001, tick=0.02, clock=clock)
    one = Watched()
    timer_wheel.watch(one)
    for number in range(1, 6):
        timer_wheel._tick(asyncio.get_running_loop())
        assert one.visits == number
    timer_wheel.stop()


async def test_the_period_may_change_while_it_runs() -> None:
    async with TimerWheel(silence=1000.0, tick=0.01) as timer_wheel:
        one = Watched()
        timer_wheel.watch(one)
        timer_wheel.silence = 0.04
        async with asyncio.timeout(20):
            while one.visits < VISITS:  # visits have no event
                await asyncio.sleep(0.01)


async def test_deadlines_of_one_length_are_one_queue() -> None:
    async with TimerWheel(tick=0.01) as timer_wheel:
        assert timer_wheel.timeout_queue(0.05) is timer_wheel.timeout_queue(0.05)
        expired = asyncio.get_running_loop().create_future()
        timer_wheel.timeout_queue(0.05).add(expired, lambda future: future.set_result("late"))
        assert await asyncio.wait_for(expired, 20) == "late"


async def test_the_wheel_has_one_timer_and_stops() -> None:
    timer_wheel = TimerWheel(tick=0.01)
    timer_wheel.start()
    with pytest.raises(RuntimeError, match="already running"):
        timer_wheel.start()
    timer_wheel.stop()
    timer_wheel.stop()
    one = Watched()
    timer_wheel.watch(one)
    await asyncio.sleep(0.05)  # nothing to wait for: the point is that nothing happens
    assert one.visits == 0


async def test_a_failing_visit_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenWatched(Watched):
        def visit(self) -> None:
            super().visit()
            raise RuntimeError("on purpose")

    with caplog.at_level(logging.CRITICAL + 1, "fairlead.carrier"):
        async with TimerWheel(silence=0.04, tick=0.01) as timer_wheel:
            watched = [BrokenWatched() for _ in range(BUCKETS)]
            for one in watched:
                timer_wheel.watch(one)
            async with asyncio.timeout(20):
                while min(one.visits for one in watched) < 3:  # visits have no event
                    await asyncio.sleep(0.01)


async def test_a_failing_group_does_not_stop_the_wheel(caplog: pytest.LogCaptureFixture) -> None:
    class FailingGroup:
        connections = 1

        def part(self, number: int, parts: int) -> list[Watched]:
            raise MemoryError

    gone: list[str] = []
    async with TimerWheel(silence=1.0, tick=0.01) as timer_wheel:
        timer_wheel.watch_group(FailingGroup())
        async with asyncio.timeout(20):
            while "a round of the timer wheel failed" not in caplog.text:
                await asyncio.sleep(0.01)
            timer_wheel.timeout_queue(0.01).add("x", gone.append)
            while not gone:
                await asyncio.sleep(0.01)


async def test_a_long_tick_is_split_so_that_others_can_run() -> None:
    """Every wait and every visit takes a millisecond: a slice handles a few of them, then other callbacks run."""
    clock = Clock()
    gone = list[int]()
    others = list[int]()

    def expire(number: int) -> None:
        clock.now += 0.001
        gone.append(number)

    loop = asyncio.get_running_loop()
    timer_wheel = TimerWheel(silence=0.001, tick=1000.0, clock=clock)
    deadline = timer_wheel.timeout_queue(5.0)
    for number in range(500):
        deadline.add(number, expire)
    watched = [SlowWatched(clock) for _ in range(500)]
    for one in watched:
        timer_wheel.watch(one)
    clock.now += 10.0
    timer_wheel._tick(loop)
    async with asyncio.timeout(20):
        while min(one.visits for one in watched) < 1:
            others.append(len(gone) + sum(one.visits for one in watched))
            await asyncio.sleep(0)
    timer_wheel.stop()
    assert gone == list(range(500))
    steps = [after - before for before, after in itertools.pairwise([0, *others])]
    assert max(steps) <= 2 * STRIDE + 5, "a slice is 5 ms, looked at every STRIDE"


async def test_a_wheel_stopped_during_a_tick_works_after_a_restart() -> None:
    clock = Clock()

    timer_wheel = TimerWheel(silence=0.001, tick=0.01, clock=clock)
    watched = [SlowWatched(clock) for _ in range(500)]
    for one in watched:
        timer_wheel.watch(one)
    timer_wheel.start()
    async with asyncio.timeout(20):
        while not any(one.visits for one in watched):
            await asyncio.sleep(0)
        timer_wheel.stop()
        assert not all(one.visits for one in watched)
        timer_wheel.start()
        while not all(one.visits for one in watched):
            await asyncio.sleep(0)
    timer_wheel.stop()


async def test_a_connection_that_is_removed_between_slices_is_not_visited() -> None:
    clock = Clock()
    timer_wheel = TimerWheel(silence=0.001, tick=1000.0, clock=clock)

    watched = [SlowWatched(clock) for _ in range(400)]
    for one in watched:
        timer_wheel.watch(one)
    timer_wheel._tick(asyncio.get_running_loop())
    left = [one for one in watched if not one.visits]
    assert left
    for one in left:
        timer_wheel.unwatch(one)
    while timer_wheel._round is not None:
        await asyncio.sleep(0)
    timer_wheel.stop()
    assert not any(one.visits for one in left)


def test_the_oldest_deadline_is_found_whatever_was_discarded() -> None:
    """100,000 waits, each discarded at the head of the queue before the next look: with a plain dict, minutes."""
    clock, gone = Clock(), list[int]()
    deadline = TimeoutQueue(5.0, clock)
    for number in range(100_000):
        deadline.add(number, gone.append)
    for number in range(99_990):
        deadline.discard(number)
        assert deadline.expire(clock.now) == 0
    assert deadline.expire(clock.now + 5.0, 3) == 3
    assert deadline.expire(clock.now + 5.0) == 7
    assert gone == list(range(99_990, 100_000))
