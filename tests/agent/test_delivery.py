"""At least once on the wire, once in effect: repetitions, lost links, credit in both directions, events.

All of it with and without a journal, which must change nothing as long as the process lives.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlead.agent import Agent, Command
from fairlead.errors import Unavailable
from fairlead.wire.messages import Ack, Chunk, Credit, End, Event, Hb, Hello

if TYPE_CHECKING:
    from tests.agent.conftest import Gateway, Link

Serve = Callable[[Agent], "asyncio.Task[None]"]
SIZE = 10_000


class Script:
    """The methods of these tests. `go` lets `steps` take its next step, `runs` counts the starts of each method."""

    def __init__(self, agent: Agent) -> None:
        self.go = asyncio.Semaphore(0)
        self.runs: list[str] = []
        self.cleaned: list[str] = []
        agent.command("steps")(self.steps)
        agent.command("flood")(self.flood)
        agent.command("once")(self.once)
        agent.command("echo")(self.echo)
        agent.command("slow-reader")(self.slow_reader)

    async def steps(self, command: Command, count: int) -> AsyncIterator[str]:
        self.runs.append(command.id)
        try:
            for n in range(count):
                await self.go.acquire()
                yield f"{n}\n"
        finally:
            self.cleaned.append(command.id)

    async def flood(self, command: Command, chunks: int) -> int:
        """Chunks that differ, as fast as the credit lets it."""
        self.runs.append(command.id)
        for n in range(chunks):
            await command.write("stdout", f"{n:08d}".encode() * (SIZE // 8))
        return chunks

    async def once(self, command: Command) -> int:
        self.runs.append(command.id)
        return len(self.runs)

    async def echo(self, command: Command) -> AsyncIterator[bytes]:
        self.runs.append(command.id)
        async for data in command.stdin:
            yield data

    async def slow_reader(self, command: Command) -> AsyncIterator[bytes]:
        async for data in command.stdin:
            await self.go.acquire()
            yield data

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.go.release()


@pytest.fixture(params=["plain", "journal"])
def agent(request: pytest.FixtureRequest, gateway: Gateway, tmp_path: Path) -> Agent:
    journal = tmp_path / "journal" if request.param == "journal" else None
    return Agent(gateway.url, "edge-1", "token-1", journal=journal)


@pytest.fixture
async def script(agent: Agent) -> Script:
    return Script(agent)


@pytest.fixture
async def link(gateway: Gateway, agent: Agent, script: Script, serve: Serve) -> Link:
    serve(agent)
    return await gateway.linked()


# -- once in effect --------------------------------------------------------------------------------


async def test_a_repeated_command_is_not_run_again(script: Script, link: Link) -> None:
    await link.command("c1", "once")
    await link.end("c1")
    await link.command("c1", "once", attempt=2)
    await link.until(lambda: len(link.of(Ack, "c1")) == 2)
    await link.command("c2", "steps", {"count": 1})
    await link.command("c2", "steps", {"count": 1}, attempt=2)
    await link.until(lambda: len(link.of(Ack, "c2")) == 2)
    script.step()
    await link.end("c2")
    assert [ack.state for ack in link.of(Ack)] == ["accepted", "duplicate", "accepted", "duplicate"]
    assert script.runs == ["c1", "c2"]
    assert [end.id for end in link.of(End)] == ["c1", "c2"]


async def test_the_last_thousand_commands_are_remembered(script: Script, link: Link) -> None:
    commands = [f"c{n}" for n in range(1024)]
    for start in range(0, 1024, 128):  # fewer at once than are refused as too many
        for command in commands[start : start + 128]:
            await link.command(command, "once")
        await link.end(commands[start + 127])
        await link.until(lambda end=start + 128: len(link.of(End)) == end)  # type: ignore[misc]
    for command in commands:
        await link.command(command, "once", attempt=2)
    await link.until(lambda: len(link.of(Ack)) == 2048)
    assert {ack.state for ack in link.of(Ack)[:1024]} == {"accepted"}
    assert {ack.state for ack in link.of(Ack)[1024:]} == {"duplicate"}
    assert len(script.runs) == 1024


async def test_a_repetition_adds_no_credit(script: Script, link: Link) -> None:
    """The judge of the link closes it as soon as a chunk goes beyond the first credit."""
    link.grants = False
    stream = await link.command("c1", "flood", {"chunks": 100})
    await link.until(lambda: stream.room < SIZE)
    await link.command("c1", "flood", {"chunks": 100}, attempt=2)
    await link.until(lambda: len(link.of(Ack, "c1")) == 2)
    await link.command("c2", "once")
    await link.end("c2")
    assert link.violation is None
    await link.cancel("c1")
    await link.end("c1")


# -- over a lost link ------------------------------------------------------------------------------


async def test_a_stream_goes_on_where_the_store_ends(gateway: Gateway, script: Script, link: Link) -> None:
    link.stores = False
    await link.command("c1", "steps", {"count": 6})
    script.step(4)
    await link.until(lambda: len(link.of(Chunk, "c1")) == 4)
    await link.store(2)  # the ack and chunk 0; chunk 1 is stored, but its receipt is lost
    await link.cut()
    script.step(1)
    again = await gateway.accept()
    hello = await again.welcome(have={"c1": 2}, resumed=True)
    first = link.of(Hello)[0]
    assert hello.boot == first.boot
    assert hello.conn > first.conn
    assert hello.have == {"c1": 0}
    script.step(1)
    end = await again.end("c1")
    assert [c.n for c in again.of(Chunk, "c1")] == [2, 3, 4, 5]
    assert [c.payload for c in again.of(Chunk, "c1")] == [b"2\n", b"3\n", b"4\n", b"5\n"]
    assert (end.state, end.total) == ("ok", 6)
    assert script.runs == ["c1"]
    assert not again.of(Ack)


async def test_the_same_octets_come_under_the_same_number(gateway: Gateway, script: Script, link: Link) -> None:
    """The new link's window is smaller: what was cut into chunks once is never cut anew."""
    link.stores = False
    stream = await link.command("c1", "flood", {"chunks": 40})
    await link.until(lambda: stream.room < SIZE)
    before = {c.n: c.payload for c in link.of(Chunk, "c1")}
    await link.cut()
    again = await gateway.linked(have={"c1": 0})
    end = await again.end("c1")
    after = {c.n: c.payload for c in again.of(Chunk, "c1")}
    assert before.items() <= after.items()
    assert again.output("c1") == b"".join(f"{n:08d}".encode() * (SIZE // 8) for n in range(40))
    assert end.total == len(after)


async def test_an_end_without_a_receipt_comes_again(gateway: Gateway, script: Script, link: Link) -> None:
    link.stores = False
    await link.command("c1", "once")
    end = await link.end("c1")
    await link.cut()
    again = await gateway.accept()
    hello = await again.welcome(have={"c1": 0})
    assert hello.have == {}, "a command that has ended takes no more input"
    assert await again.end("c1") == end
    await again.cut()
    # Its receipt has come: the third link hears nothing of it.
    third = await gateway.linked()
    await third.command("c2", "once")
    await third.end("c2")
    assert not third.of(End, "c1")
    assert script.runs == ["c1", "c2"]


async def test_a_command_repeated_after_its_lost_ack(gateway: Gateway, script: Script, link: Link) -> None:
    link.stores = False
    await link.command("c1", "steps", {"count": 2})
    await link.expect(Ack, "c1")
    await link.cut()
    again = await gateway.linked(have={"c1": 0})
    await again.command("c1", "steps", {"count": 2}, attempt=2)
    assert (await again.expect(Ack, "c1")).state == "duplicate"
    script.step(2)
    assert (await again.end("c1")).total == 2
    assert script.runs == ["c1"]


async def test_a_stream_that_the_gateway_has_ended_is_stopped(gateway: Gateway, script: Script, link: Link) -> None:
    await link.command("c1", "steps", {"count": 2})
    await link.command("c2", "steps", {"count": 1})
    await link.until(lambda: script.runs == ["c1", "c2"])
    await link.cut()
    again = await gateway.linked(have={"c2": 0})
    async with asyncio.timeout(10):
        while script.cleaned != ["c1"]:
            await asyncio.sleep(0.01)
    script.step(3)
    assert (await again.end("c2")).state == "ok"
    assert not again.of(End, "c1")
    assert not again.of(Chunk, "c1")


async def test_results_lost_behind_the_gateway_are_told(gateway: Gateway, script: Script, link: Link) -> None:
    """The store has less than it gave receipts for: the command ends there, since nobody has what lies between."""
    await link.command("c1", "steps", {"count": 6})
    script.step(3)
    await link.until(lambda: len(link.of(Chunk, "c1")) == 3 and link.unstored == 0)
    # The receipts are known to have been read when something that came behind them is answered.
    await link.command("c2", "once")
    await link.end("c2")
    await link.cut()
    again = await gateway.linked(have={"c1": 1})
    end = await again.end("c1")
    assert (end.state, end.total) == ("error", 1)
    assert end.error is not None
    assert end.error.code == "results_gap"
    assert not again.of(Chunk, "c1")


async def test_output_goes_on_while_the_link_is_away_up_to_the_window(
    gateway: Gateway, script: Script, link: Link
) -> None:
    link.stores = False
    stream = await link.command("c1", "flood", {"chunks": 100})
    await link.until(lambda: stream.room < SIZE)
    await link.cut()
    again = await gateway.linked(have={"c1": 0})
    end = await again.end("c1")
    assert len(again.of(Chunk, "c1")) == end.total
    assert again.output("c1") == b"".join(f"{n:08d}".encode() * (SIZE // 8) for n in range(100))


async def test_many_losses_in_mid_stream(gateway: Gateway, script: Script, link: Link) -> None:
    """Links of random length; whatever was stored stands, and all of it is stored once."""
    stored: dict[int, bytes] = {}
    here = link
    await here.command("c1", "flood", {"chunks": 150})
    for n in range(8):
        await here.until(lambda h=here, n=n: len(h.of(Chunk, "c1")) >= 5 + 3 * n or bool(h.of(End)))  # type: ignore[misc]
        await here.cut()
        for chunk in here.of(Chunk, "c1"):
            assert chunk.n not in stored
            stored[chunk.n] = chunk.payload
        if here.of(End):
            break
        here = await gateway.linked(have={"c1": len(stored)})
    await here.end("c1")
    for chunk in here.of(Chunk, "c1"):
        stored[chunk.n] = chunk.payload
    assert sorted(stored) == list(range(len(stored)))
    assert b"".join(stored[n] for n in sorted(stored)) == b"".join(
        f"{n:08d}".encode() * (SIZE // 8) for n in range(150)
    )
    assert script.runs == ["c1"]


async def test_a_receipt_for_what_was_never_sent_closes_the_link(gateway: Gateway, script: Script, link: Link) -> None:
    from fairlead.wire.messages import Rx

    await link.command("c1", "steps", {"count": 1})
    await link.expect(Ack, "c1")
    await link.send(Rx(s=99))
    assert await link.closed() == 4500
    # It was the agent's finding, so it comes back: the next node may know better.
    again = await gateway.linked(have={"c1": 0})
    script.step()
    await again.end("c1")


# -- credit ----------------------------------------------------------------------------------------


async def test_output_stops_at_the_credit(script: Script, link: Link) -> None:
    link.grants = False
    stream = await link.command("c1", "flood", {"chunks": 100})
    await link.until(lambda: stream.room < SIZE)
    # Something that comes later shows that nothing else was on its way.
    await link.command("c2", "once")
    await link.end("c2")
    sent = sum(len(c.payload) for c in link.of(Chunk, "c1"))
    assert 256 * 1024 - SIZE < sent <= 256 * 1024
    stream.room += 64_000
    await link.send(Credit(id="c1", bytes=64_000))
    await link.until(lambda: sum(len(c.payload) for c in link.of(Chunk, "c1")) > sent + 64_000 - SIZE)
    await link.cancel("c1")
    await link.end("c1")


@pytest.mark.parametrize("window", [1_000, 20_000, 70_000])
async def test_small_windows(gateway: Gateway, agent: Agent, serve: Serve, window: int) -> None:
    """The gateway grants when half a window is stored: a chunk above that half could wait for ever."""
    Script(agent)
    serve(agent)
    link = await gateway.linked(window=window)
    await link.command("c1", "flood", {"chunks": 30})
    assert (await link.end("c1")).state == "ok"
    assert len(link.output("c1")) == 30 * SIZE


async def test_a_window_that_shrinks_between_links(gateway: Gateway, script: Script, link: Link) -> None:
    """More is unstored than the new link's window allows: it comes as the credit lets it."""
    link.stores = False
    stream = await link.command("c1", "flood", {"chunks": 40})
    await link.until(lambda: stream.room < SIZE)
    await link.cut()
    again = await gateway.linked(have={"c1": 0}, window=64 << 10)
    assert (await again.end("c1")).state == "ok"
    assert again.output("c1") == b"".join(f"{n:08d}".encode() * (SIZE // 8) for n in range(40))


async def test_streams_do_not_wait_for_each_other(script: Script, link: Link) -> None:
    link.grants = False
    stream = await link.command("c1", "flood", {"chunks": 100})
    await link.until(lambda: stream.room < SIZE)
    await link.command("c2", "flood", {"chunks": 3})
    assert (await link.end("c2")).state == "ok"
    await link.cancel("c1")
    await link.end("c1")


# -- input -----------------------------------------------------------------------------------------


async def test_input_reaches_the_handler_once_and_in_order(script: Script, link: Link) -> None:
    await link.command("c1", "echo")
    await link.feed("c1", b"one ", b"two ", b"", b"three")
    await link.feed_end("c1")
    assert (await link.end("c1")).state == "ok"
    assert link.output("c1") == b"one two three"


async def test_input_goes_on_where_the_handler_stands(gateway: Gateway, script: Script, link: Link) -> None:
    """Taken on the first link: one chunk. What was received and not taken is asked for again, and comes once."""
    await link.command("c1", "slow-reader")
    await link.feed("c1", b"one ", b"two ", b"three ")
    script.step()
    await link.until(lambda: link.output("c1") == b"one ")
    await link.cut()
    again = await gateway.accept()
    hello = await again.expect(Hello)
    # The handler holds the second chunk already, or it does not: what it took is never asked for again.
    wanted = hello.have["c1"]
    assert wanted in (1, 2)
    await again.welcome(have={"c1": 1})
    await again.feed("c1", *[b"one ", b"two ", b"three "][wanted:], b"four")
    await again.feed_end("c1")
    script.step(10)
    assert (await again.end("c1")).state == "ok"
    assert link.output("c1") + again.output("c1") == b"one two three four"


async def test_the_end_of_input_may_come_on_each_link(gateway: Gateway, script: Script, link: Link) -> None:
    await link.command("c1", "slow-reader")
    await link.feed("c1", b"one")
    await link.feed_end("c1")
    await link.command("c2", "once")
    await link.end("c2")
    await link.cut()
    again = await gateway.accept()
    wanted = (await again.welcome(have={"c1": 0})).have["c1"]
    await again.feed("c1", *[b"one"][wanted:])
    await again.feed_end("c1")
    script.step(5)
    assert (await again.end("c1")).state == "ok"
    assert again.output("c1") == b"one"


async def test_input_is_granted_as_it_is_taken(script: Script, link: Link) -> None:
    """Never before: what is granted is forgotten by the gateway, and what is not taken must come again."""
    stream = await link.command("c1", "slow-reader")
    for _ in range(8):
        await link.feed("c1", b"x" * 32_000)
    await link.command("c2", "once")
    await link.end("c2")
    assert not link.of(Credit, "c1")
    script.step(8)
    await link.until(lambda: stream.input_room >= 128 << 10)
    assert sum(c.bytes for c in link.of(Credit, "c1")) <= 8 * 32_000
    await link.feed_end("c1")
    assert (await link.end("c1")).state == "ok"


async def test_input_of_a_command_that_the_agent_does_not_know_is_ignored(script: Script, link: Link) -> None:
    await link.send(Chunk(id="strange", n=7, kind="stdin", payload=b"x"), End(id="strange", total=9))
    await link.command("c1", "once")
    assert (await link.end("c1")).state == "ok"


async def test_a_gap_in_the_input_closes_the_link(gateway: Gateway, script: Script, link: Link) -> None:
    await link.command("c1", "slow-reader")
    await link.expect(Ack, "c1")
    await link.send(Chunk(id="c1", n=1, kind="stdin", payload=b"x"))
    assert await link.closed() == 4500
    again = await gateway.linked(have={"c1": 0})
    await again.feed_end("c1")
    assert (await again.end("c1")).state == "ok"


# -- events ----------------------------------------------------------------------------------------


async def test_an_event_is_repeated_until_its_receipt(gateway: Gateway, agent: Agent, link: Link) -> None:
    link.stores = False
    agent.emit("disk.full", {"path": "/var"})
    event = await link.expect(Event)
    assert (event.type, json.loads(event.payload), event.qos) == ("disk.full", {"path": "/var"}, 1)
    assert event.time > 1_600_000_000_000
    await link.cut()
    again = await gateway.linked()
    assert await again.expect(Event) == event
    # The receipt has been read when a command that came behind it is answered.
    await again.command("c1", "once")
    await again.end("c1")
    await again.cut()
    third = await gateway.linked()
    await third.command("c2", "once")
    await third.end("c2")
    assert not third.of(Event)


async def test_events_wait_for_the_first_link(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.accept()
    await link.expect(Hello)
    agent.emit("early", 1)
    agent.emit("lost", 2, qos=0)
    await link.welcome()
    agent.emit("later", 3)
    await link.until(lambda: len(link.of(Event)) >= 2)
    assert [event.type for event in link.of(Event)] == ["early", "later"]
    assert len({event.id for event in link.of(Event)}) == 2


async def test_events_of_qos_0_are_sent_once(gateway: Gateway, agent: Agent, link: Link) -> None:
    link.stores = False
    agent.emit("pulse", qos=0)
    event = await link.expect(Event)
    assert (event.qos, event.payload) == (0, b"null") or (event.qos, event.payload) == (0, b"")
    await link.cut()
    again = await gateway.linked()
    await again.command("c1", "once")
    await again.end("c1")
    assert not again.of(Event)


async def test_events_that_nobody_stores_do_not_fill_the_memory(agent: Agent, link: Link) -> None:
    link.stores = False
    for n in range(1000):
        agent.emit("tick", n)
    with pytest.raises(Unavailable, match="1000 events wait"):
        agent.emit("tick", 1000)
    await link.until(lambda: len(link.of(Event)) == 1000)
    await link.store(link.unstored)
    async with asyncio.timeout(10):
        while True:
            try:
                agent.emit("tick", 1000)
                break
            except Unavailable:
                await asyncio.sleep(0.01)
    await link.until(lambda: len(link.of(Event)) == 1001)


async def test_events_keep_their_order(agent: Agent, link: Link) -> None:
    for n in range(500):
        agent.emit("tick", n)
    await link.until(lambda: len(link.of(Event)) == 500)
    assert [json.loads(event.payload) for event in link.of(Event)] == list(range(500))


async def test_the_json_twin(gateway: Gateway, serve: Serve) -> None:
    agent = Agent(gateway.url, "edge-1", "token-1", encoding="json")
    Script(agent)
    serve(agent)
    link = await gateway.linked()
    assert str(link.socket.subprotocol) == "fairlead.v1.json"
    await link.command("c1", "flood", {"chunks": 40})
    assert (await link.end("c1")).state == "ok"
    assert len(link.output("c1")) == 40 * SIZE
    assert not link.of(Hb)
