"""A fleet whose nodes were all replaced by nodes that refuse every agent, as after a rollout with a wrong setting: what
becomes of the commands that were open, and of their callers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import websockets

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Rx

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent

NAME = "agents.example.com"
"""Under which the agents connect."""
WAITING: dict[str, Any] = {"deadline": 8, "on_offline": {"queue": 12}}
"""Ended after 20 s: while the nodes are replaced, it is open."""
FOLLOWERS = 3
"""Callers of each command."""


async def by_name(dial: DialAgent, node: GatewayProcess, agent: str = "") -> ScriptedAgent:
    port = node.link.rpartition(":")[2]
    node.link = f"ws://{NAME}:{port}"
    return await dial(node, agent, host="127.0.0.1", port=int(port))


async def end_of(apis: list[GatewayApi], command: str) -> dict[str, Any]:
    """The last line that a caller receives who goes on at the next node when one stops."""
    at = 0
    for api in apis:
        last = (await api.lines(command, at))[-1]
        if "end" in last:
            return dict(last["end"])
        at = last["more"]
    raise AssertionError(f"{command}: the last node has told its caller to go on elsewhere")


@pytest.mark.timeout(180)
async def test_open_commands_end_for_all_their_callers_when_no_node_takes_agents(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    old = make_gateway(own_valkey.url, "--drain-timeout", "2", "--allowed-hosts", NAME)
    new: list[GatewayProcess] = [
        make_gateway(own_valkey.url, "--allowed-hosts", "agents.example.org", name=f"node-{n}") for n in (2, 3)
    ]
    apis = [api_of(old), *(api_of(node) for node in new)]
    peer = await by_name(dial, old)
    await peer.greet()
    running = await apis[0].start(peer.agent, **WAITING)
    await peer.command()
    await peer.send(Ack(id=running))
    await peer.send_output(running, 0, "begun")
    await peer.expect(Rx)
    sent = await apis[1].start(peer.agent, **WAITING)
    await peer.command()  # which it never acknowledges
    async with asyncio.TaskGroup() as group:
        followers = {
            command: [group.create_task(end_of([*apis[:1], apis[1 + n % 2]], command)) for n in range(FOLLOWERS)]
            for command in (running, sent)
        }
        await asyncio.to_thread(old.stop)
        for node in new:
            with pytest.raises(websockets.InvalidStatus) as refused:
                await by_name(dial, node, peer.agent)
            assert refused.value.response.status_code == 403
        queued = await apis[1].start(peer.agent, deadline=2, on_offline={"queue": 4})
        followers[queued] = [group.create_task(end_of([apis[2 - n % 2]], queued)) for n in range(FOLLOWERS)]
    for command, state in ((running, "timeout"), (sent, "timeout"), (queued, "offline")):
        ends = [task.result() for task in followers[command]]
        assert ends[0]["state"] == state
        assert ends == [ends[0]] * FOLLOWERS
    assert await apis[2].output(running) == "begun"
