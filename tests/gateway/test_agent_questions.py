"""The commands `why`, `agents ls` and `agents label` against a real gateway."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from fairlead.wire.messages import Ack, Hb

from support.fixtures import UntilAnswered
from support.gateway.platform_api import Api
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import Dial


async def fairlead(gateway: GatewayProcess, *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one call."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", *args, "--api", gateway.api,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(20):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_why_of_a_healthy_agent(gateway: GatewayProcess, api: Api, dial: Dial) -> None:
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


async def test_why_of_an_agent_that_disconnected(
    gateway: GatewayProcess, api: Api, dial: Dial, until: UntilAnswered
) -> None:
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


async def test_why_of_an_unknown_agent(gateway: GatewayProcess) -> None:
    code, out, err = await fairlead(gateway, "why", "nobody-at-all")
    assert (code, out) == (2, "")
    assert "has ever connected" in err


async def test_agents_ls_selects_by_labels(gateway: GatewayProcess, dial: Dial) -> None:
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
    code, _, err = await fairlead(gateway, "agents", "ls", "-l", "env>prod")
    assert (code, "at position" in err) == (2, True)
    code, _, err = await fairlead(gateway, "agents", "label", peer.agent, "nonsense")
    assert (code, "expected KEY=VALUE or KEY-" in err) == (2, True)
