"""Links that the agent itself ends: drained, stopped, cancelled or terminated by a signal; nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from pathlib import Path

import pytest

from fairlead.agent import Agent
from fairlead.wire.messages import Bye, End, Hb, Hello

from support.agent.fixtures import Gone, Serve, StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import NEVER


async def test_a_drained_agent_leaves_at_its_slot_and_comes_back(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    go = asyncio.Event()

    @agent.command("wait")
    async def wait() -> str:
        await go.wait()
        return "done"

    serve(agent)
    link = await gateway.linked(retry=NEVER)
    await link.command("c1", "wait")
    began = time.monotonic()
    await link.drain(400)
    await gateway.attempted(2)
    assert time.monotonic() - began >= 0.39
    again = await gateway.linked(have={"c1": 0}, retry=NEVER)
    assert await link.closed() == 1000
    go.set()
    assert (await again.end("c1")).state == "ok"


async def test_a_drained_agent_that_is_closed_first_comes_back_as_well(
    gateway: Gateway, agent: Agent, serve: Serve
) -> None:
    """At its slot the gateway closes; the slots are spread already, so the policy's ceilings do not hold."""
    serve(agent)
    link = await gateway.linked(retry=NEVER)
    await link.drain(60_000)
    await link.close(4000)
    await gateway.linked()


async def test_a_bye_after_a_drain_replaces_its_delay(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked(retry=NEVER)
    await link.drain(60_000)
    began = time.monotonic()
    await link.close(4000, retry=1500)
    await gateway.attempted(2)
    assert time.monotonic() - began >= 1.49
    await gateway.linked()


async def test_a_second_drain_replaces_the_first(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    """Told twice, the second time with another slot: it leaves once."""
    serve(agent)
    link = await gateway.linked(retry=NEVER)
    await link.drain(300)
    await link.drain(200)
    again = await gateway.linked()
    await link.closed()
    await again.send(Hb(ts=1))
    assert len(gateway.attempts) == 2


async def test_stop_sends_bye(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    @agent.command("sleep")
    async def sleep() -> None:
        await asyncio.sleep(1000)

    serving = serve(agent)
    link = await gateway.linked()
    await link.command("c1", "sleep")
    await link.until(lambda: link.unstored == 0 and len(link.heard) > 1)
    agent.stop()
    async with asyncio.timeout(20):
        await serving
    assert await link.closed() == 1001
    assert link.of(End, "c1")[0].state == "cancelled"
    assert link.of(Bye)[0].code == 1001
    assert isinstance(link.heard[-1][1], Bye)
    assert len(gateway.attempts) == 1


@pytest.mark.parametrize("when", ["at once", "refused", "before welcome", "between links"])
async def test_stop_works_at_any_moment(gateway: Gateway, agent: Agent, serve: Serve, when: str) -> None:
    if when == "refused":
        gateway.refusals.append((503, {"Retry-After": "500"}))
    serving = serve(agent)
    await asyncio.sleep(0)
    if when == "refused":
        await gateway.attempted(1)
    elif when == "before welcome":
        link = await gateway.accept()
        await link.expect(Hello)
    elif when == "between links":
        link = await gateway.linked(retry=NEVER)
        await link.cut()
    agent.stop()
    async with asyncio.timeout(20):
        await serving


async def test_stop_while_a_connection_attempt_hangs(serve: Serve) -> None:
    """A connection that is accepted by the kernel and read by nobody."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        agent = Agent(f"ws://127.0.0.1:{mute.getsockname()[1]}", "edge-1", "t")
        serving = serve(agent)
        mute.settimeout(20)
        peer, _ = await asyncio.to_thread(mute.accept)
        agent.stop()
        async with asyncio.timeout(20):
            await serving
        peer.close()


async def test_stop_may_be_called_twice_and_before_serving(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    agent.stop()
    serving = serve(agent)
    link = await gateway.accept()
    await link.expect(Hello)
    agent.stop()
    agent.stop()
    async with asyncio.timeout(20):
        await serving


async def test_cancelling_serve_leaves_no_task(
    gateway: Gateway, agent: Agent, serve: Serve, cleaned: list[bool]
) -> None:
    before = asyncio.all_tasks()
    serving = serve(agent)
    link = await gateway.linked()
    await link.command("c1", "sleep")
    await link.command("c2", "nop")
    await link.end("c2")
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 20)
    await link.closed()
    assert cleaned == [True]
    left = {t for t in asyncio.all_tasks() - before if "handler" not in t.get_name() and "fairlead/agent" in repr(t)}
    assert not left


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_and_what_it_runs(
    gateway: Gateway, agent_process: StartAgentProcess, gone: Gone, tmp_path: Path, number: int
) -> None:
    process = agent_process("-m", "fairlead", "agent", "run", "--url", gateway.url, "--id", "edge-1")
    link = await gateway.linked()
    # Not `c1`: what bears the mark of this command is killed, in other tests, too.
    id = f"signal-{process.pid}"
    source = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; echo $$; wait"
    await link.command(id, "exec", {"argv": ["sh", "-c", source]})
    await link.until(lambda: link.output(id).count(b"\n") == 3)
    pids = [int(line) for line in link.output(id).split()]
    process.signal(number)
    assert await process.exit_code() == 0, process.log
    assert await link.closed() == 1001
    assert link.of(End, id)[0].state == "cancelled"
    for pid in pids:
        await gone(pid)
    assert "Traceback" not in process.log


async def test_a_replaced_process_logs_the_reason_and_ends(gateway: Gateway, agent_process: StartAgentProcess) -> None:
    process = agent_process("-m", "fairlead", "agent", "run", "--url", gateway.url, "--id", "edge-1")
    link = await gateway.linked()
    await link.close(4507)
    assert await process.exit_code() != 0
    assert "4507" in process.log
    assert "Traceback" not in process.log
