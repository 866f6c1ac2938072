"""Silence is reported in whole periods, any byte ends it, and a busy or paused connection is not silent."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.listeners import ListenerFactory
from support.carrier.servers import Dial
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


FIN = 0x80
TEXT, BINARY, CLOSE, PING = 0x1, 0x2, 0x8, 0x9


async def test_silence_is_reported_in_periods_and_ends_with_any_byte(
    listeners: ListenerFactory, dial: Dial, timer_wheel: TimerWheel, ours: bool
) -> None:
    timer_wheel.silence = 0.4
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    listener = listeners.last
    await until(lambda: len(listener.silences) >= 2)
    assert listener.silences[:2] == [1, 2]
    if ours:
        raw.write(b"\x82")  # not even a frame
    else:
        raw.send(FIN | BINARY, b"x")
    await until(lambda: listener.silences.count(1) == 2)


async def test_a_busy_or_paused_connection_is_not_silent(
    listeners: ListenerFactory, dial: Dial, timer_wheel: TimerWheel
) -> None:
    timer_wheel.silence = 0.4
    talker, sleeper, mute = await dial(listeners.port), await dial(listeners.port), await dial(listeners.port)
    await until(lambda: len(listeners.all) == 3 and all(one.connection for one in listeners.all))
    mute.send(FIN | BINARY, b"the last")
    await until(lambda: any(one.messages for one in listeners.all))
    muted = next(one for one in listeners.all if one.messages)
    talker.send(FIN | BINARY, b"0")
    await until(lambda: sum(bool(one.messages) for one in listeners.all) == 2)
    talking = next(one for one in listeners.all if one.messages == [b"0"])
    paused = next(one for one in listeners.all if one not in (muted, talking))
    paused.open_connection.pause_reading()
    async with asyncio.timeout(20):
        while len(muted.silences) < 2:
            talker.send(FIN | BINARY, b"x")
            await asyncio.sleep(0.02)
    assert talking.silences == []
    assert paused.silences == []
    assert sleeper is not None
