"""Output stops at the gateway's credit: windows that are small, shrink or are never granted."""

from __future__ import annotations

import pytest

from fairlead.agent import Agent
from fairlead.wire.messages import Chunk, Credit

from support.agent.delivery_methods import SIZE, Script
from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link


async def test_output_stops_at_the_credit(script: Script, link: Link) -> None:
    link.grants = False
    stream = await link.command("c1", "flood", {"chunks": 100})
    await link.until(lambda: stream.credit_left < SIZE)
    # Something that comes later shows that nothing else was on its way.
    await link.command("c2", "once")
    await link.end("c2")
    sent = sum(len(c.payload) for c in link.of(Chunk, "c1"))
    assert 256 * 1024 - SIZE < sent <= 256 * 1024
    stream.credit_left += 64_000
    await link.send(Credit(id="c1", bytes=64_000))
    await link.until(lambda: sum(len(c.payload) for c in link.of(Chunk, "c1")) > sent + 64_000 - SIZE)
    await link.cancel("c1")
    await link.end("c1")


@pytest.mark.parametrize("window", [1_000, 20_000, 70_000])
async def test_output_is_complete_through_small_windows(
    gateway: Gateway, agent: Agent, serve: Serve, window: int
) -> None:
    """The gateway grants when half a window is stored: a chunk above that half could wait for ever."""
    Script(agent)
    serve(agent)
    link = await gateway.linked(window=window)
    await link.command("c1", "flood", {"chunks": 30})
    assert (await link.end("c1")).state == "ok"
    assert len(link.output("c1")) == 30 * SIZE


async def test_a_smaller_window_on_the_next_link_holds_output_back(
    gateway: Gateway, script: Script, link: Link
) -> None:
    """More is unstored than the new link's window allows: it comes as the credit lets it."""
    link.stores = False
    stream = await link.command("c1", "flood", {"chunks": 40})
    await link.until(lambda: stream.credit_left < SIZE)
    await link.cut()
    again = await gateway.linked(have={"c1": 0}, window=64 << 10)
    assert (await again.end("c1")).state == "ok"
    assert again.output("c1") == b"".join(f"{n:08d}".encode() * (SIZE // 8) for n in range(40))


async def test_streams_do_not_wait_for_each_other(script: Script, link: Link) -> None:
    link.grants = False
    stream = await link.command("c1", "flood", {"chunks": 100})
    await link.until(lambda: stream.credit_left < SIZE)
    await link.command("c2", "flood", {"chunks": 3})
    assert (await link.end("c2")).state == "ok"
    await link.cancel("c1")
    await link.end("c1")
