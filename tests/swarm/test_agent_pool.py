"""Simulated agents with a gateway that sends what a healthy one never would: they keep to the protocol even then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from fairlead.swarm.agents import dial_queue
from fairlead.swarm.agents.agent_pool import AgentPool
from fairlead.swarm.options import SwarmOptions
from fairlead.wire.codec import gateway_codec
from fairlead.wire.messages import (
    SUBPROTOCOL_MSGPACK,
    Ack,
    Bye,
    Chunk,
    Cmd,
    Credit,
    Drain,
    End,
    FromAgent,
    Hb,
    Hello,
    Message,
    Retry,
    Rx,
    Welcome,
)

CODEC = gateway_codec(SUBPROTOCOL_MSGPACK)
SOON = Retry(first=20, base=20, cap=50)  # ms: no test waits for a reconnect
TIMEOUT = 20.0
M = TypeVar("M", bound=Message)


class PoolLink:
    """The gateway's end of one connection."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket

    async def send(self, *messages: Message) -> None:
        for message in messages:
            await self.socket.send(CODEC.encode(message))

    async def receive(self) -> FromAgent | None:
        async with asyncio.timeout(TIMEOUT):
            return CODEC.decode(await self.socket.recv())

    async def expect(self, kind: type[M]) -> M:
        """The next message, heartbeats aside."""
        while isinstance(message := await self.receive(), Hb):
            pass
        assert isinstance(message, kind), message
        return message

    async def greet(self, **welcome: object) -> Hello:
        hello = await self.expect(Hello)
        await self.send(Welcome(sid="s", gen=1, now=1, retry=SOON, **{"hb": 60_000, **welcome}))  # type: ignore[arg-type]
        return hello


Script = Callable[[PoolLink], Awaitable[None]]


@asynccontextmanager
async def played(*scripts: Script, agents: int = 1, profile: str = "idle") -> AsyncIterator[AgentPool]:
    """A pool of agents with a gateway that plays one script on each connection, in order."""
    waiting, failed = list(scripts), asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def connected(socket: ServerConnection) -> None:
        script = waiting.pop(0) if waiting else None
        if script is None:
            await socket.wait_closed()
            return
        try:
            await script(PoolLink(socket))
        except BaseException as e:
            failed.set_exception(e)
        if not waiting:
            done.set()
        await socket.wait_closed()  # a handler that returns would close it

    async with serve(connected, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL_MSGPACK)]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        options = SwarmOptions(f"ws://127.0.0.1:{port}/v1/link", "token", agents, 1, 1000.0, {profile: 1})
        pool = AgentPool(options, 0, time.monotonic())
        running = asyncio.create_task(pool.run())
        waited = asyncio.create_task(done.wait())
        try:
            await asyncio.wait({failed, waited, running}, timeout=2 * TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
            assert done.is_set(), "the scripts were not played to their end"
            yield pool
        finally:
            waited.cancel()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await pool.leave()
            failed.cancel()


async def closed(link: PoolLink) -> int:
    """Read everything until the agent closes; returns its close code."""
    with suppress(ConnectionClosed):
        while True:
            await link.receive()
    return link.socket.close_code or 0


async def test_a_second_welcome_is_a_violation_and_the_agent_reconnects() -> None:
    hellos: list[Hello] = []

    async def twice(link: PoolLink) -> None:
        hellos.append(await link.greet())
        await link.send(Welcome(sid="s", gen=1, now=1, hb=1))
        assert await closed(link) == 4500

    async def once(link: PoolLink) -> None:
        hellos.append(await link.greet())
        assert await link.socket.ping()

    async with played(twice, once) as pool:
        counters = pool.count()
        assert (counters.violations, counters.lost, counters.rejected, counters.welcomes, counters.agents_welcomed) == (
            1,
            1,
            0,
            2,
            1,
        )
    assert hellos[0].boot == hellos[1].boot
    assert [hello.conn for hello in hellos] == [1, 2]


async def test_heartbeats_are_sent_in_time_and_a_silent_gateway_is_given_up() -> None:
    async def mute(link: PoolLink) -> None:
        await link.greet(hb=400)
        began = time.monotonic()
        beats = 0
        with suppress(ConnectionClosed):
            while True:
                assert isinstance(await link.receive(), Hb)
                beats += 1
        passed = time.monotonic() - began
        assert passed > 2.4 * 0.4, "given up before 2.5 heartbeats had passed"
        assert 2 <= beats < passed / 0.4 + 1.5

    async with played(mute) as pool:
        counters = pool.count()
        assert (counters.lost, counters.closed) == (1, {"4008": 1})


async def test_unstored_output_is_sent_again_and_ids_are_remembered_over_links() -> None:
    cmd = Cmd(id="c", method="exec", payload=b'{"bytes": 40000}', credit=20_000)

    async def first(link: PoolLink) -> None:
        await link.greet()
        await link.send(cmd)
        assert (await link.expect(Ack)).state == "accepted"
        assert len((await link.expect(Chunk)).payload) == 16_384  # the next one is more than the credit left
        await link.send(Rx(s=1), Credit(id="c", bytes=13_000))
        assert (await link.expect(Chunk)).n == 1
        await link.socket.close(1011)

    async def second(link: PoolLink) -> None:
        hello = await link.expect(Hello)
        assert hello.have == {"c": 0}
        await link.send(Welcome(sid="s", gen=2, now=1, hb=60_000, have={"c": 1}, retry=SOON))
        again, last, end = await link.expect(Chunk), await link.expect(Chunk), await link.expect(End)
        assert [again.n, last.n, end.total] == [1, 2, 3]
        assert len(again.payload) + len(last.payload) == 40_000 - 16_384
        await link.send(cmd)
        assert (await link.expect(Ack)).state == "duplicate"
        await link.send(Rx(s=4))
        await link.socket.ping()
        # Everything is receipted: one number more was never sent.
        await link.send(Rx(s=5))
        assert await closed(link) == 4500

    async with played(first, second) as pool:
        counters = pool.count()
        assert (counters.commands, counters.duplicates, counters.answered) == (1, 1, 1)
        assert (counters.closed, counters.output_bytes) == ({"1011": 1}, 40_000)


async def test_drains_and_byes_are_obeyed_and_4507_is_final() -> None:
    times: list[float] = []

    async def draining(link: PoolLink) -> None:
        await link.greet()
        await link.send(Drain(why="shutdown", slot=300))
        times.append(time.monotonic())
        assert isinstance(await link.expect(Bye), Bye)
        times.append(time.monotonic())
        assert await closed(link) == 1000

    async def telling(link: PoolLink) -> None:
        await link.greet()
        await link.send(Bye(code=4000, retry=700))
        times.append(time.monotonic())
        await link.socket.close(4000)

    async def replacing(link: PoolLink) -> None:
        times.append(time.monotonic())
        await link.greet()
        await link.socket.close(4507)

    async with played(draining, telling, replacing) as pool:
        async with asyncio.timeout(20):
            while not (counters := pool.count()).rejected:
                await asyncio.sleep(0.02)
        assert (counters.moved, counters.lost, counters.attempts) == (2, 1, 3)
    assert times[1] - times[0] >= 0.29
    assert 0.69 <= times[3] - times[2] < 20


async def test_a_drained_agent_uses_its_old_link_until_the_new_one_is_welcomed() -> None:
    greeted, answered = asyncio.Event(), asyncio.Event()

    async def old(link: PoolLink) -> None:
        await link.greet()
        await link.send(Drain(why="rebalance"))
        await greeted.wait()
        await link.send(Cmd(id="c1", method="echo", payload=b"on the old link"))
        assert isinstance(await link.expect(Ack), Ack)
        assert (await link.expect(Chunk)).payload == b"on the old link"
        await link.expect(End)
        answered.set()
        await link.expect(Bye)
        assert await closed(link) == 1000

    async def new(link: PoolLink) -> None:
        assert (await link.expect(Hello)).conn == 2
        greeted.set()
        await answered.wait()
        await link.send(Welcome(sid="s", gen=2, now=1, hb=60_000, retry=SOON, have={"c1": 0}))
        assert (await link.expect(Chunk)).payload == b"on the old link"  # it has no receipt
        await link.expect(End)
        await link.send(Rx(s=2))
        await link.send(Cmd(id="c1", method="echo", attempt=2))
        assert (await link.expect(Ack)).state == "duplicate"
        await (await link.socket.ping())

    async with played(old, new) as pool:
        counters = pool.count()
        assert (counters.moved, counters.lost, counters.attempts, counters.linked) == (1, 0, 2, 1)
        assert (counters.commands, counters.answered, counters.duplicates) == (1, 1, 1)


async def test_an_attempt_of_a_move_that_fails_is_made_again_and_the_old_link_stays() -> None:
    async def old(link: PoolLink) -> None:
        await link.greet()
        await link.send(Drain(why="rebalance"))
        await link.expect(Bye)
        assert await closed(link) == 1000

    async def failing(link: PoolLink) -> None:
        await link.expect(Hello)
        await link.socket.close(1011)

    async def new(link: PoolLink) -> None:
        await link.greet()
        await (await link.socket.ping())

    async with played(old, failing, new) as pool:
        counters = pool.count()
        assert (counters.moved, counters.lost, counters.attempts, counters.refused) == (1, 0, 3, {"close 1011": 1})


async def test_attempts_that_wait_for_welcome_count_as_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that is slow to welcome never has more agents waiting than a process may connect at a time."""
    monkeypatch.setattr(dial_queue, "CONCURRENT", 2)
    waiting, most = 0, 0

    async def slow(link: PoolLink) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await link.expect(Hello)
        await asyncio.sleep(0.1)  # the gateway's slowness: all six attempts are due within 10 ms
        waiting -= 1
        await link.send(Welcome(sid="s", gen=1, now=1, retry=SOON, hb=60_000))

    async with played(*[slow] * 6, agents=6) as pool:
        assert most <= 2
        assert pool.counters.attempts == 6
