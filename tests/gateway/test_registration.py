"""More agents connect at once than are claimed at once: the rest wait for their turn."""

from __future__ import annotations

import asyncio
import os
import signal

from fairlead.routing.agents.registration import CLAIMS_AT_ONCE
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Hello

from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def test_a_link_that_is_lost_before_its_turn_claims_nothing(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """Its claim could take the agent from a newer process of it, which has another link by then."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)

    async def linked(count: int) -> bool:
        text = (await api.http.get(f"{gateway.admin}/metrics")).text
        return f"\nfairlead_links {float(count)}\n" in text

    links = [await dial(gateway, f"agent-{n}") for n in range(CLAIMS_AT_ONCE)]
    gone, last = await dial(gateway, "gone"), await dial(gateway, "last")
    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        for link in links:
            await link.send(Hello(agent=link.agent, boot="boot-1", conn=1))
        await gone.send(Hello(agent="gone", boot="boot-1", conn=1))
        gone.socket.transport.abort()
        await until(lambda: linked(CLAIMS_AT_ONCE + 1))
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    # Claims are made in the order of the hellos: when this one is welcomed, that of the lost link has had its turn.
    await last.greet()
    await asyncio.sleep(0)
    assert (await api.http.get("/v1/agents/gone")).status_code == 404
    assert (await api.agent("last"))["state"] == "online"
