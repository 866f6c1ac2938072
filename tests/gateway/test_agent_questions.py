"""The commands `why`, `agents ls` and `agents label` against a real gateway."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Hb

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def fairlead(gateway: GatewayProcess, *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one call."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", *args, "--api", gateway.api,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(20):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_why_of_a_healthy_agent(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    await peer.send(Hb(ts=1, rtt=3.25))
    await peer.expect(Hb)
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    code, out, err = await fairlead(gateway, "why", peer.agent)
    assert (code, err) == (0, "")
    assert out.startswith(f"{peer.agent} is online on node-1 since 20")
    assert "round trip 3.2 ms, 1 open command" in out
    assert f"open        {command}" in out


async def test_why_of_an_agent_that_disconnected(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent, deadline=0.2)
    await peer.command()
    await api.end(command)
    await peer.socket.close(1000, "going \x1b[31mred")

    async def away() -> bool:
        return bool((await api.agent(peer.agent))["state"] == "away")

    await until(away)
    code, out, _ = await fairlead(gateway, "why", peer.agent)
    assert code == 0
    assert f"{peer.agent} is away since" in out
    assert "its link closed with 1000" in out
    assert "last close  1000 (closed on purpose): going ?[31mred" in out  # nothing controls the terminal
    assert f"command {command} ended as timeout: deadline" in out


async def test_why_of_agents_whose_node_was_killed(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """The close that the link before had recorded is not taken for that of the link which the kill has ended."""
    killed, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api = api_of(other)

    async def reason_of(agent: str, begin: str) -> None:
        async with asyncio.timeout(90):  # a node is taken for dead after 15 s
            while not ((await api.agent(agent))["last_reason"] or "").startswith(begin):
                await asyncio.sleep(0.1)

    agents = []
    for _ in range(2):
        peer = await dial(killed)
        await peer.greet(conn=1)
        await peer.socket.close(1000, "an orderly close")
        await reason_of(peer.agent, "an orderly close")
        await (await dial(killed, peer.agent)).greet(conn=2)
        agents.append(peer.agent)
    returned = agents[-1]
    killed.signal(signal.SIGKILL)
    again = await dial(other, returned)
    await again.greet(conn=3)
    assert "an orderly close" not in (await fairlead(other, "why", returned))[1]

    for agent in agents:
        await reason_of(agent, "node-1 ended without closing the link")
        code, out, err = await fairlead(other, "why", agent)
        assert (code, err) == (0, "")
        assert (f"{agent} is online on node-2 since 20" in out) == (agent == returned)
        assert (
            "last close  1006 (the connection was lost without a close frame): "
            "node-1 ended without closing the link, after its heartbeat of 20"
        ) in out
        assert "an orderly close" not in out

    await again.socket.close(1001, "it goes home")
    await reason_of(returned, "it goes home")
    _, out, _ = await fairlead(other, "why", returned)
    assert "last close  1001 (the process is shutting down): it goes home" in out


async def test_why_of_an_unknown_agent(gateway: GatewayProcess) -> None:
    code, out, err = await fairlead(gateway, "why", "nobody-at-all")
    assert (code, out) == (2, "")
    assert "has ever connected" in err


async def test_agents_ls_selects_by_labels(gateway: GatewayProcess, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet(facts={"fleet": peer.agent})
    code, out, err = await fairlead(gateway, "agents", "label", peer.agent, "env=prod", "ring=1")
    assert (code, out, err) == (0, "env=prod\nring=1\n", "")
    code, out, _ = await fairlead(gateway, "agents", "label", peer.agent, "ring-")
    assert (code, out) == (0, "env=prod\n")
    code, out, _ = await fairlead(gateway, "agents", "ls", "-o", "name", "-l", f"fleet={peer.agent},env in (prod)")
    assert (code, out) == (0, f"{peer.agent}\n")
    code, out, err = await fairlead(gateway, "agents", "ls", "-l", f"fleet={peer.agent},env=dev")
    assert (code, out.splitlines()[1:], "no agents match" in err) == (0, [], True)
    code, _, err = await fairlead(gateway, "agents", "ls", "-l", "env prod")
    assert (code, "at position" in err) == (2, True)
    code, _, err = await fairlead(gateway, "agents", "label", peer.agent, "nonsense")
    assert (code, "expected KEY=VALUE or KEY-" in err) == (2, True)
