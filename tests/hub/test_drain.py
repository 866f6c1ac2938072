"""A drain at a pace: which agents are told, when each is closed, and how many remain."""

from __future__ import annotations

import asyncio

from fairlead.hub.hub import Hub
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Bye, Drain

from support.hub.linked_session import AGENT, greeted, linked


def said(sent: list[bytes | str]) -> list[type]:
    return [type(AGENT.decode(data)) for data in sent]


async def test_each_agent_gets_bye_and_is_then_closed() -> None:
    hub = Hub()
    links = [linked(hub.totals, f"agent-{i}") for i in range(3)]
    for session, _ in links:
        hub.add(session)
    assert await hub.drain(1_000, 60) == 3
    assert hub.draining
    assert hub.drain_remaining == 0
    for session, wire in links:
        assert session.drained
        assert said(wire.sent) == [Drain, Bye]
        assert wire.closed == [CloseCode.RESTART]


async def test_links_without_welcome_are_closed_without_bye() -> None:
    """Before welcome, an agent treats any message but hb and bye as a protocol violation."""
    hub = Hub()
    session, wire = greeted(hub.totals)
    hub.add(session)
    assert await hub.drain(1_000, 60) == 1
    assert said(wire.sent) == [Bye]
    assert wire.closed == [CloseCode.RESTART]


async def test_agents_that_leave_by_themselves_shorten_the_drain() -> None:
    hub = Hub()
    links = [linked(hub.totals, f"agent-{i}") for i in range(3)]
    for session, _ in links:
        hub.add(session)
    drain = asyncio.create_task(hub.drain(1 / 3_600, 3_600))
    while not links[-1][1].sent:
        await asyncio.sleep(0)
    assert links[0][1].closed == [CloseCode.RESTART], "the first slot is now"
    for left, (session, wire) in zip((1, 0), links[1:], strict=True):
        session.on_close(wire, 1001, "the agent stops")
        assert hub.remove(session)
        assert hub.drain_remaining == left
    assert await asyncio.wait_for(drain, 20) == 3
    assert [wire.closed for _, wire in links[1:]] == [[], []]
