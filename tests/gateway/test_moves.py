"""An agent that moves between real nodes is reached all the time: its new link is there before the old one goes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from fairlead.agent import Agent, Command
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Bye, Chunk, Credit, Hb, Hello, Welcome

from faults.balancer import Balancer
from support.gateway.platform_api import PLATFORM_TOKEN, GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import AGENT_TOKEN, DialAgent
from support.gateway.steady_commands import SteadyCommands
from support.waiting import until, wait_until

RATE = 100.0


class BalancedAgent:
    """An agent of the SDK that reaches the nodes through a load balancer, and counts what it runs."""

    def __init__(self, url: str) -> None:
        self.ran: Counter[str] = Counter()
        self.agent = Agent(url, "mover", AGENT_TOKEN)
        self.serving: asyncio.Task[None] | None = None

        @self.agent.command("echo")
        async def echo(command: Command) -> str:
            self.ran[command.id] += 1
            return "here"

        @self.agent.command("copy")
        async def copy(command: Command) -> int:
            self.ran[command.id] += 1
            size = 0
            async for data in command.stdin:
                size += len(data)
                await command.write("stdout", data)
            return size

    async def stop(self) -> None:
        assert self.serving is not None
        self.agent.stop()
        async with asyncio.timeout(30):
            await self.serving


@pytest.fixture
async def nodes(own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> list[GatewayProcess]:
    """A drain of these waits no more than 6 s for an agent that is always inside a command."""
    return [make_gateway(own_valkey.url, "--drain-timeout", "12", name=f"node-{n}") for n in (1, 2)]


@pytest.fixture
async def mover(nodes: list[GatewayProcess]) -> AsyncIterator[BalancedAgent]:
    balancer = Balancer(lambda: [int(node.link.rpartition(":")[2]) for node in nodes if node.running], random.Random(1))
    await balancer.start()
    mover = BalancedAgent(f"ws://127.0.0.1:{balancer.port}")
    mover.serving = asyncio.create_task(mover.agent.serve())
    yield mover
    await mover.stop()
    await balancer.stop()


async def holder(api: GatewayApi) -> str:
    """The node that holds the agent, "" if none does."""
    answer = await api.http.get("/v1/agents/mover")
    return str(answer.json()["node"]) if answer.status_code == 200 and answer.json()["state"] == "online" else ""


async def test_every_command_is_answered_once_while_the_node_of_its_agent_stops(
    nodes: list[GatewayProcess], mover: BalancedAgent, api_of: MakeGatewayApi
) -> None:
    """100 a second, over two moves; the node that stopped is started again before the next. The load balancer leads
    some attempts back to the node that stops: its 503 leaves the old link as it was.
    """
    apis = {node.name: api_of(node) for node in nodes}

    async def linked() -> bool:
        return bool(await holder(apis["node-1"]))

    await until(linked)
    for _ in range(2):
        name = await holder(apis["node-1"])
        leaving, staying = sorted(nodes, key=lambda node: node.name != name)
        async with SteadyCommands(staying.api, PLATFORM_TOKEN, ["mover"], "echo", RATE) as commands:
            while len(commands.outcomes) < RATE:
                await asyncio.sleep(0.05)
            leaving.signal(signal.SIGTERM)
            assert await asyncio.to_thread(leaving.wait) == 0
            so_far = len(commands.outcomes)
            while len(commands.outcomes) < so_far + RATE:
                await asyncio.sleep(0.05)
        assert [o for o in commands.outcomes if o.state != "ok"] == []
        assert await holder(apis[staying.name]) == staying.name
        leaving.start()
    assert set(mover.ran.values()) == {1}, "a command ran twice"


async def test_input_is_read_once_and_in_order_over_moves(
    nodes: list[GatewayProcess], mover: BalancedAgent, api_of: MakeGatewayApi
) -> None:
    """A copy of input that goes on while its agent moves, with a cancel of another command in the same moment."""
    one, two = nodes
    apis = {node.name: api_of(node) for node in nodes}

    async def linked() -> bool:
        return bool(await holder(apis["node-1"]))

    await until(linked)
    name = await holder(apis["node-1"])
    leaving, staying = (one, two) if name == one.name else (two, one)
    api = apis[staying.name]
    copying = await api.start("mover", "copy", deadline=300)
    parts = [f"{n:06}\n" * 2_000 for n in range(60)]
    for n, part in enumerate(parts):
        if n == 20:
            leaving.signal(signal.SIGTERM)
        answer = await api.http.post(f"/v1/commands/{copying}/input?n={n}", content=part.encode())
        assert answer.status_code < 300, answer.text
    assert (await api.http.post(f"/v1/commands/{copying}/input?n={len(parts)}&end=true")).status_code < 300
    end = await api.end(copying)
    assert (end["state"], end["payload"]) == ("ok", sum(map(len, parts)))
    assert await api.output(copying) == "".join(parts)
    assert await asyncio.to_thread(leaving.wait) == 0
    assert mover.ran[copying] == 1


async def test_input_that_is_granted_on_the_old_link_after_hello_is_not_replaced_by_what_follows(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """The new link is to begin with input that is gone. The command never reads the chunk behind it in its place."""
    gateway = make_gateway(own_valkey.url)
    api, old = api_of(gateway), await dial(gateway)
    await old.greet()
    command = await api.start(old.agent, deadline=300)
    await old.command()
    await old.send(Ack(id=command))
    for n, part in enumerate((b"one", b"two", b"three")):
        assert (await api.http.post(f"/v1/commands/{command}/input?n={n}", content=part)).status_code == 204
        assert (await old.expect(Chunk)).n == n
    os.kill(own_valkey.pid, signal.SIGSTOP)  # the claim waits, so that the old link is there
    try:
        new = await dial(gateway)
        await new.send(Hello(agent=old.agent, boot="boot-1", conn=2, have={command: 0}))
        await old.send(Credit(id=command, bytes=len(b"onetwo")), Hb(ts=1))
        await old.expect(Hb)
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    await new.expect(Welcome)
    await asyncio.to_thread(wait_until, lambda: f"input 0 of {command} on {old.agent} is gone" in gateway.log())
    await new.send(Hb(ts=2))
    while not isinstance(message := await new.receive(), Hb):  # the link stays, and gets no chunk
        assert not isinstance(message, Chunk | Bye)
