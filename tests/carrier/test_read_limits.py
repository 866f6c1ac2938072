"""A connection at its read limit: it is held, may still be paused and closed, and only a flood is ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead.carrier.listener import Connection
from fairlead.carrier.reading import account
from fairlead.carrier.reading import scheduler as module
from fairlead.carrier.reading.account import ReadBudget
from fairlead.carrier.reading.scheduler import SLICE

from support.carrier.listeners import RecordingListener
from support.carrier.scheduled_listeners import Listen, MeteredListener
from support.carrier.servers import Dial
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT, BINARY, PING = 0x81, 0x82, 0x89
MIB = 1 << 20


@pytest.mark.parametrize("metered", [True, False])
async def test_a_connection_that_stays_at_its_limit_is_closed(
    listen: Listen, dial: Dial, monkeypatch: pytest.MonkeyPatch, metered: bool
) -> None:
    monkeypatch.setattr(module, "STRAIN_LIMIT", 0.5)
    listeners = await listen(ReadBudget(messages=10.0))
    if not metered:
        listeners.make = RecordingListener
    raw = await dial(listeners.port)
    raw.write(raw.encode(TEXT, b"x") * 50_000)
    code, reason = (4413, "more than 10 messages a second for 0.5 s") if metered else (1008, "more than 10 messages")
    frame = await raw.frame()
    assert frame is not None
    assert (frame[0], int.from_bytes(frame[1][:2], "big")) == (0x88, code)
    assert frame[1][2:].decode().startswith(reason)
    assert await raw.frame() is None, "our half is closed at once despite the flood"
    raw.end()
    await until(lambda: listeners.all[0].closed)
    assert listeners.all[0].closed[0][0] == code
    assert len(listeners.all[0].messages) <= 100 + 2 * SLICE + 50
    await until(lambda: len(listeners.read_scheduler) == 0)


async def test_a_listener_that_fails_at_its_limit_is_closed_and_the_others_are_read(
    listen: Listen, dial: Dial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(MeteredListener):
        def on_excess(self, connection: Connection, reason: str) -> None:
            raise RuntimeError("on purpose")

    monkeypatch.setattr(module, "STRAIN_LIMIT", 0.5)
    listeners = await listen(ReadBudget(messages=100.0))
    listeners.make = Failing
    raw = await dial(listeners.port)
    raw.write(raw.encode(TEXT, b"x") * 50_000)
    first, payload = await raw.expect_frame()
    assert (first, int.from_bytes(payload[:2], "big")) == (0x88, 1008)
    assert "listener failed in on_excess" in caplog.text
    raw.end()
    monkeypatch.undo()
    listeners.make = MeteredListener
    other = await dial(listeners.port)
    other.write(other.encode(TEXT, b"x") * 1_200)  # the credit is 1,000, and the rest has to be granted
    await until(lambda: len(listeners.all[1].messages) == 1_200)


async def test_a_connection_with_occasional_bursts_is_not_closed(
    listen: Listen, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRAIN_LIMIT", 1.0)
    monkeypatch.setattr(account, "CREDIT", 1.0)
    listeners = await listen(ReadBudget(messages=1_000.0))
    raw = await dial(listeners.port)
    for burst in range(1, 4):
        raw.write(raw.encode(TEXT, b"x") * 1_100)  # a little more than the credit
        await until(lambda: len(listeners.all[0].messages) == 1_100 * burst)  # noqa: B023  # awaited at once
        await until(lambda: len(listeners.read_scheduler) == 0)
    assert listeners.all[0].excesses == []


async def test_a_listener_may_pause_and_resume_a_held_connection(listen: Listen, dial: Dial) -> None:
    listeners = await listen(ReadBudget(messages=100.0))

    class Pausing(MeteredListener):
        def on_message(self, connection: Connection, message: bytes | str) -> None:
            super().on_message(connection, message)
            if len(self.messages) == 1_100:
                connection.pause_reading()

    listeners.make = Pausing
    raw = await dial(listeners.port)
    raw.write(raw.encode(TEXT, b"x") * 1_300)
    await until(lambda: listeners.read_scheduler.waiting)
    await until(lambda: len(listeners.all[0].messages) >= 1_100)
    (account,) = listeners.read_scheduler._accounts.values()
    assert account.held
    assert account.silent
    came = len(listeners.all[0].messages)
    assert came <= 1_100 + SLICE
    await until(lambda: account.messages > 0)  # its budget is filled, and still it is not read
    assert len(listeners.all[0].messages) == came
    listeners.all[0].connection.resume_reading()
    await until(lambda: len(listeners.all[0].messages) == 1_300)
    await until(lambda: not account.held)


async def test_a_held_connection_can_be_closed_in_order(listen: Listen, dial: Dial) -> None:
    listeners = await listen(ReadBudget(messages=10.0))
    raw = await dial(listeners.port)
    raw.write(raw.encode(TEXT, b"x") * 400)
    await until(lambda: listeners.read_scheduler.waiting)
    listeners.all[0].connection.close(4000, "elsewhere")
    assert await raw.frame() == (0x88, (4000).to_bytes(2, "big") + b"elsewhere")
    raw.send(0x88, (4000).to_bytes(2, "big"))
    assert await raw.frame() is None
    assert listeners.all[0].closed == [(4000, "elsewhere")]
    assert len(listeners.read_scheduler) == 0


async def test_a_server_that_stops_does_not_wait_for_a_flood(listen: Listen, dial: Dial, running: Any) -> None:
    """A flooder's answer to the close frame is behind its flood, which nobody reads on: it is cut off."""
    listeners = await listen(ReadBudget(messages=10.0), close_timeout=1.0)
    server, stopped = running[-1]
    raws = [await dial(listeners.port) for _ in range(5)]
    for raw in raws:
        raw.write(raw.encode(PING, b"x") * 2_000_000)
    await until(lambda: listeners.read_scheduler.waiting == 5)
    server.should_exit = True
    async with asyncio.timeout(module.STRAIN_LIMIT / 2):
        await asyncio.shield(stopped)
    assert {listener.closed[0][0] for listener in listeners.all} == {1012}
    for raw in raws:
        raw.writer.transport.abort()
