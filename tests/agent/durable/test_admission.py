"""An accepted command is on the disk: acks, cancels and repetitions wait for the sync; and agents that serve again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead.agent.errors import JournalFailed
from fairlead.agent.journal.journal import Journal
from fairlead.agent.journal.replay import replay
from fairlead.wire.messages import Ack, Chunk, Cmd, Event

from support.agent.durable_host import hello
from support.agent.fixtures import Serve
from support.agent.flooding_agent import durable
from support.agent.scripted_gateway import Gateway


async def test_a_cancel_and_a_repetition_may_arrive_before_the_sync(
    gateway: Gateway, tmp_path: Path, serve: Serve
) -> None:
    serve(durable(gateway, tmp_path))
    link = await gateway.linked()
    await link.command("c1", "flood", {"size": 1 << 30})
    await link.command("c1", "flood", {"size": 1 << 30}, attempt=2)
    await link.cancel("c1")
    end = await link.end("c1")
    assert end.state == "cancelled"
    await link.until(lambda: len(link.of(Ack)) == 2)
    assert [ack.state for ack in link.of(Ack)] == ["accepted", "duplicate"]
    assert end.total == 0, "it was cancelled before the disk had it"


async def test_an_agent_serves_twice(gateway: Gateway, tmp_path: Path, serve: Serve) -> None:
    """What is emitted before, between and in the two lives arrives; the memory is the same."""
    agent = durable(gateway, tmp_path)
    agent.emit("before")
    task = serve(agent)
    link = await gateway.linked()
    link.stores = False
    await link.expect(Event)
    agent.emit("during")
    agent.stop()
    await link.closed()
    await task
    agent.emit("between")
    serve(agent)
    again = await gateway.linked()
    await again.until(lambda: len(again.of(Event)) == 3)
    assert [e.type for e in again.of(Event)] == ["before", "during", "between"]
    assert hello(again).caps.journal == hello(link).caps.journal


async def test_a_stopped_agent_reports_what_it_cancelled_after_its_restart(
    gateway: Gateway, tmp_path: Path, serve: Serve
) -> None:
    task = serve(agent := durable(gateway, tmp_path))
    link = await gateway.linked()
    link.stores = False
    await link.command("c1", "flood", {"size": 1 << 30})
    await link.expect(Chunk, "c1")
    agent.stop()
    await link.closed()
    await task
    made = len(link.of(Chunk, "c1"))
    serve(durable(gateway, tmp_path))
    again = await gateway.linked(have={"c1": 1})
    end = await again.end("c1")
    assert (end.state, end.total) == ("cancelled", made)
    assert len(again.of(Chunk)) == made - 1


async def test_accepted_commands_are_synced_together(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "edge-1")
    journal.start(lambda: None)
    waiters = [journal.accept(Cmd(id=f"c{n}", method="m")) for n in range(300)]
    assert not any(waiter.done() for waiter in waiters)
    async with asyncio.timeout(20):
        await asyncio.gather(*waiters)
    assert len(replay((tmp_path / "journal").read_bytes()).state.commands) == 300
    await journal.close()
    with pytest.raises(JournalFailed):
        journal.keep(Event(id="e1", type="t"))
