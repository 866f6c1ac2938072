"""Heartbeats of a link: when the agent sends them, when it gives up a silent gateway, and that work does not delay
them."""

from __future__ import annotations

import asyncio
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from fairlead.agent import Agent
from fairlead.wire.messages import End, Hb

from support.agent.fixtures import Serve, StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.waiting import until


async def test_heartbeats_are_sent_only_when_nothing_else_is_sent(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked(hb=1000)  # given up after 2.5 of them, which a busy machine must not reach
    await link.until(lambda: len(link.of(Hb)) >= 3)
    times = [at for at, m in link.heard if isinstance(m, Hb)]
    assert times[-1] - times[0] >= 1.0 * 2 * 0.8
    assert link.of(Hb)[-1].rtt is not None
    assert all(hb.echo is None for hb in link.of(Hb)), "an agent never answers a heartbeat"


async def test_a_gateways_heartbeat_is_not_answered(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    @agent.command("nop")
    async def nop() -> None: ...

    serve(agent)
    link = await gateway.linked()
    for _ in range(5):
        await link.send(Hb(ts=1))
    await link.command("c1", "nop")
    await link.end("c1")
    assert not link.of(Hb)


async def test_a_silent_gateway_is_given_up_after_two_and_a_half_heartbeats(
    gateway: Gateway, agent: Agent, serve: Serve
) -> None:
    serve(agent)
    link = await gateway.linked(hb=400)
    began = time.monotonic()
    link.answers = False
    await gateway.attempted(2)
    assert time.monotonic() - began >= 0.9, "not before 2.5 heartbeats, less what the first beat took"
    await gateway.linked()


async def test_a_gateway_that_is_frozen_is_given_up(
    agent_process: StartAgentProcess, tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGSTOP: its kernel still acknowledges every packet, so only silence shows it."""
    (tmp_path / "frozen.py").write_text(FROZEN)
    process = agent_process(str(tmp_path / "frozen.py"), str(tmp_path / "port"))
    await until((tmp_path / "port").exists)
    hellos = tmp_path / "port.hellos"
    agent = Agent(f"ws://127.0.0.1:{(tmp_path / 'port').read_text()}", "edge-1", "t")
    serving = serve(agent)

    async def greeted(count: int) -> None:
        await until(lambda: hellos.exists() and len(hellos.read_text()) >= count)

    await greeted(1)
    process.signal(signal.SIGSTOP)
    with caplog.at_level("INFO", "fairlead.agent"):
        await until(lambda: "nothing was heard" in caplog.text)
    process.signal(signal.SIGCONT)
    await greeted(2)
    assert not serving.done()


FROZEN = """
import asyncio, os, sys
import websockets
from fairlead.wire.codec import gateway_codec
from fairlead.wire.messages import Hb, Hello, Retry, SUBPROTOCOL_MSGPACK, Welcome

codec = gateway_codec(SUBPROTOCOL_MSGPACK)

async def link(socket):
    async for data in socket:
        message = codec.decode(data)
        if isinstance(message, Hello):
            with open(sys.argv[1] + ".hellos", "a") as file:
                file.write("x")
            welcome = Welcome(sid="s", gen=1, now=0, hb=200, retry=Retry(first=20, base=20, cap=100))
            await socket.send(codec.encode(welcome))
        elif isinstance(message, Hb):
            await socket.send(codec.encode(Hb(echo=message.ts)))

async def main():
    server = await websockets.serve(
        link, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK)], compression=None
    )
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(next(iter(server.sockets)).getsockname()[1]))
    os.replace(sys.argv[1] + ".new", sys.argv[1])
    await server.serve_forever()

asyncio.run(main())
"""


BUSY = """
import time
from fairlead.agent import Agent

def burn(n: int) -> dict[str, int]:
    end = time.process_time() + 1.5
    rounds = 0
    while time.process_time() < end:
        rounds += 1
    return {"n": n, "rounds": rounds}

if __name__ == "__main__":
    import sys
    from busy_agent import burn
    agent = Agent(sys.argv[1], "edge-1", "t")
    agent.command("burn", run="process")(burn)
    agent.run()
"""


async def test_ten_busy_commands_at_once_delay_no_heartbeat(
    gateway: Gateway, agent_process: StartAgentProcess, tmp_path: Path
) -> None:
    """15 s of computing on a few cores, heartbeats of 500 ms. A link is lost at 2.5 heartbeats of silence, so that
    is what no gap may reach; with the work on the loop, a gap is as long as the work: 1.5 s.
    """
    (tmp_path / "busy_agent.py").write_text(BUSY)
    agent_process(str(tmp_path / "busy_agent.py"), gateway.url)
    link: Link = await gateway.linked(hb=500)
    commands = [f"c{n}" for n in range(10)]
    for n, command in enumerate(commands):
        await link.command(command, "burn", {"n": n})
    async with asyncio.timeout(50):
        while len(link.of(End)) < 10:
            assert link.close_code is None
            await asyncio.sleep(0.1)
    assert {end.state for end in link.of(End)} == {"ok"}
    times = [at for at, _ in link.heard]
    gaps = sorted(later - earlier for earlier, later in pairwise(times))
    assert times[-1] - times[0] > 3, "it was work"
    assert gaps[-1] < 1.25, f"the longest silences: {gaps[-5:]}"
