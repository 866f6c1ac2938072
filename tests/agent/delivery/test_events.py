"""Events are sent again until they are stored, in order and in bounded memory; and the same over JSON."""

from __future__ import annotations

import asyncio
import json

import pytest

from fairlead.agent import Agent
from fairlead.errors import Unavailable
from fairlead.wire.messages import Event, Hb, Hello, Rx

from support.agent.delivery_methods import SIZE, Script
from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link


async def test_an_event_is_sent_again_until_its_receipt(gateway: Gateway, agent: Agent, link: Link) -> None:
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


async def test_events_that_are_never_stored_do_not_fill_the_memory(agent: Agent, link: Link) -> None:
    link.stores = False
    for n in range(1000):
        agent.emit("tick", n)
    with pytest.raises(Unavailable, match="1000 events wait"):
        agent.emit("tick", 1000)
    await link.until(lambda: len(link.of(Event)) == 1000)
    await link.store(link.unstored)
    async with asyncio.timeout(20):
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


async def test_streams_are_delivered_over_json(gateway: Gateway, serve: Serve) -> None:
    agent = Agent(gateway.url, "edge-1", "token-1", encoding="json")
    Script(agent)
    serve(agent)
    link = await gateway.linked()
    assert str(link.socket.subprotocol) == "fairlead.v1.json"
    await link.command("c1", "flood", {"chunks": 40})
    assert (await link.end("c1")).state == "ok"
    assert len(link.output("c1")) == 40 * SIZE
    assert not link.of(Hb)


async def test_an_agent_that_floods_is_told_that_older_events_were_removed(
    gateway: Gateway, agent: Agent, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    link.stores = False
    with caplog.at_level("WARNING", "fairlead.agent"):
        agent.emit("noise")
        await link.expect(Event)
        await link.send(Rx(s=1, dropped=3), Rx(s=1, dropped=4))
        await link.command("c1", "once")
        await link.end("c1")
    (warning,) = [record.getMessage() for record in caplog.records if "removed" in record.getMessage()]
    assert "3 older events of this agent" in warning
