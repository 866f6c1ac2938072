"""A node that does not run for some seconds in the middle of its drain: it does not close at once all that has become
due meanwhile."""

from __future__ import annotations

import asyncio
import signal

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import LEAVE_GRACE, Drain

from support.gateway.process import TIMEOUT, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent

AGENTS, RATE = 120, 20


async def test_links_that_become_due_while_their_node_is_stopped_are_not_closed_at_once(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    """All agents stay although they are told to move, one after the other in six seconds. The node is stopped when the
    last one is told, until the time of all has passed."""
    flags = ("--drain-rate", str(RATE), "--drain-timeout", "300", "--accept-rate", "2000")
    leaving, _ = (make_gateway(own_valkey.url, *flags, name=f"node-{i}") for i in (1, 2))
    peers = [await dial(leaving, f"stays-{i}") for i in range(AGENTS)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    loop = asyncio.get_running_loop()
    codes: list[int] = []

    async def expect_drain(peer: ScriptedAgent) -> None:
        await peer.expect(Drain)

    async def closed(peer: ScriptedAgent) -> float:
        codes.append(await peer.close_code())
        return loop.time()

    leaving.signal(signal.SIGTERM)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*map(expect_drain, peers))
    leaving.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(LEAVE_GRACE + 1)  # what is tested is what happens in this time, not what follows it
    finally:
        leaving.signal(signal.SIGCONT)
    closes = sorted(await asyncio.gather(*map(closed, peers)))
    assert set(codes) == {CloseCode.RESTART}
    # Six seconds' worth of closes. Half of that leaves room for a busy machine; closed at once they take no time.
    assert closes[-AGENTS // 10] - closes[AGENTS // 10] > AGENTS * 0.8 / RATE / 2
    assert await asyncio.to_thread(leaving.wait) == 0
