"""Holding a link for ever: when the agent comes back, when it leaves, what it does when the gateway goes silent."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlead.agent import Agent
from fairlead.errors import ConnectionRefused
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Bye, Chunk, End, Hb, Hello, Retry
from fairlead.wire.retry import RetryPolicy

if TYPE_CHECKING:
    from tests.agent.conftest import Gateway, Link

Serve = Callable[[Agent], "asyncio.Task[None]"]
NEVER = Retry(first=600_000, base=600_000, cap=600_000)
"""A policy under which a test that waits for it does not end in time (but for one draw in 30)."""


# -- greeting --------------------------------------------------------------------------------------


async def test_hello_says_who_it_is(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.accept()
    hello = await link.expect(Hello)
    assert (hello.agent, hello.conn, hello.have) == ("edge-1", 1, {})
    assert hello.sdk.startswith("fairlead-python/")
    assert hello.facts["env"] == "test"
    assert hello.facts["os"] == "linux"
    assert len(hello.boot) >= 8
    request = gateway.requests[0]
    assert request.path == "/v1/link"
    assert request.headers["Authorization"] == "Bearer token-1"
    assert SUBPROTOCOL_MSGPACK in request.headers["Sec-WebSocket-Protocol"]
    await link.welcome()


async def test_a_path_in_the_url_is_kept(gateway: Gateway, serve: Serve) -> None:
    serve(Agent(f"{gateway.url}/behind/a/proxy", "edge-1", "t"))
    await gateway.linked()
    assert gateway.requests[0].path == "/behind/a/proxy"


async def test_nothing_is_said_between_hello_and_welcome(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    """The judge of the link closes it at the first message that is neither hello nor hb."""

    @agent.command("stream")
    async def stream() -> AsyncIterator[str]:
        for _ in range(100):
            yield "x"
            await asyncio.sleep(0.005)

    serve(agent)
    first = await gateway.linked()
    await first.command("c1", "stream")
    await first.expect(Chunk, "c1")
    await first.cut()
    again = await gateway.accept()
    await again.expect(Hello)
    agent.emit("meanwhile", 1)
    await asyncio.sleep(0.1)  # the command goes on meanwhile
    assert [type(m) for _, m in again.heard] == [Hello]
    await again.welcome(have={"c1": len(first.of(Chunk, "c1"))})
    assert (await again.end("c1")).total == 100


# -- heartbeats ------------------------------------------------------------------------------------


async def test_heartbeats_when_there_is_nothing_else_to_say(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked(hb=500)  # the link is given up after 2.5 of them, which a busy machine must not reach
    await link.until(lambda: len(link.of(Hb)) >= 5)
    times = [at for at, m in link.heard if isinstance(m, Hb)]
    assert times[-1] - times[0] >= 0.5 * 4 * 0.8
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


async def test_a_gateway_that_is_frozen_is_given_up(agent_process: Any, tmp_path: Path, serve: Serve) -> None:
    """SIGSTOP: its kernel still acknowledges every packet, so only silence tells."""
    (tmp_path / "frozen.py").write_text(FROZEN)
    process = agent_process(str(tmp_path / "frozen.py"), str(tmp_path / "port"))
    async with asyncio.timeout(20):
        while not (tmp_path / "port").exists():
            await asyncio.sleep(0.02)
    hellos = tmp_path / "port.hellos"
    agent = Agent(f"ws://127.0.0.1:{(tmp_path / 'port').read_text()}", "edge-1", "t")
    serving = serve(agent)

    async def greeted(count: int) -> None:
        async with asyncio.timeout(20):
            while not hellos.exists() or len(hellos.read_text()) < count:
                await asyncio.sleep(0.02)

    await greeted(1)
    process.signal(signal.SIGSTOP)
    # Long enough for 2.5 heartbeats of 200 ms and the quarter more; waking it up shows who dialled meanwhile.
    await asyncio.sleep(1.5)
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


# -- coming back -----------------------------------------------------------------------------------


async def test_conn_counts_attempts_and_boot_stays(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    hellos = []
    for _ in range(4):
        link = await gateway.accept()
        hellos.append(await link.welcome())
        await link.cut()
    await gateway.linked()
    assert len({hello.boot for hello in hellos}) == 1
    conns = [hello.conn for hello in hellos]
    assert conns == sorted(set(conns))


async def test_two_starts_are_two_boots(gateway: Gateway, serve: Serve) -> None:
    boots = set()
    for _ in range(2):
        agent = Agent(gateway.url, "edge-1", "t")
        serving = serve(agent)
        link = await gateway.accept()
        boots.add((await link.welcome()).boot)
        agent.stop()
        await serving
    assert len(boots) == 2


async def test_the_policy_of_welcome_holds(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    """Eight losses under a ceiling of 50 ms take no eight seconds, which the defaults might."""
    serve(agent)
    link = await gateway.linked(retry=Retry(first=50, base=50, cap=50))
    began = time.monotonic()
    for _ in range(8):
        await link.cut()
        link = await gateway.linked(retry=Retry(first=50, base=50, cap=50))
    assert time.monotonic() - began < 8


def test_delays_are_full_jitter() -> None:
    """The bounds that the agent draws in; the policy itself is tested in the wire's tests."""
    policy = RetryPolicy(first=20_000, base=1_000, cap=8_000)
    ceilings = [20_000, 2_000, 4_000, 8_000, 8_000, 8_000]
    for attempt, ceiling in enumerate(ceilings):
        delays = [policy.delay(attempt, draw / 1000) for draw in range(1000)]
        assert min(delays) == 0
        assert ceiling * 0.99 < max(delays) < ceiling


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_respected(gateway: Gateway, agent: Agent, serve: Serve, status: int) -> None:
    gateway.refusals.append((status, {"Retry-After": "1"}))
    serve(agent)
    await gateway.attempted(2)
    first, second = gateway.attempts[:2]
    assert second - first >= 0.99
    await gateway.linked()


async def test_other_refusals_are_tried_again_by_the_policy(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked()
    for status in (500, 502, 200):
        gateway.refusals.append((status, {}))
    await link.cut()
    await gateway.linked()
    assert len(gateway.attempts) == 5


@pytest.mark.parametrize("status", [401, 403, 426])
async def test_what_a_person_must_mend_is_tried_slowly(
    gateway: Gateway, agent: Agent, serve: Serve, status: int
) -> None:
    """Between half the cap and the cap, and never given up: it cannot be mended from the platform otherwise."""
    serve(agent)
    slow = Retry(first=10, base=10, cap=800)
    link = await gateway.linked(retry=slow)
    gateway.refusals.extend([(status, {})] * 2)
    await link.cut()
    await gateway.attempted(4)
    second, third, fourth = gateway.attempts[1:4]
    assert third - second >= 0.39
    assert fourth - third >= 0.39
    await gateway.linked()


async def test_a_gateway_that_is_not_there_yet(gateway: Gateway, serve: Serve) -> None:
    """Nobody listens on the port; then somebody does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agent = Agent(f"ws://127.0.0.1:{port}", "edge-1", "t")
    serving = serve(agent)
    await asyncio.sleep(0.05)
    assert not serving.done()
    agent.stop()
    async with asyncio.timeout(10):
        await serving


async def test_the_time_in_bye_is_respected(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked(retry=Retry(first=1, base=1, cap=1))
    began = time.monotonic()
    await link.close(4000, retry=700)
    await gateway.attempted(2)
    assert time.monotonic() - began >= 0.69
    await gateway.linked()


async def test_a_bye_may_call_it_back_sooner_than_the_policy(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked(retry=NEVER)
    await link.close(4000, retry=50)
    await gateway.linked()


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012, 4000, 4003, 4007, 4008, 4408, 4499])
async def test_codes_that_mean_come_back(gateway: Gateway, agent: Agent, serve: Serve, code: int) -> None:
    serving = serve(agent)
    link = await gateway.linked()
    await link.close(code)
    await gateway.linked()
    assert not serving.done()


@pytest.mark.parametrize("code", [4500, 4503, 4507, 4999])
async def test_codes_that_mean_stay_away(gateway: Gateway, agent: Agent, serve: Serve, code: int) -> None:
    cleaned: list[bool] = []

    @agent.command("sleep")
    async def sleep() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            cleaned.append(True)

    @agent.command("nop")
    async def nop() -> None: ...

    serving = serve(agent)
    link = await gateway.linked()
    await link.command("c1", "sleep")
    await link.command("c2", "nop")
    await link.end("c2")
    await link.close(code)
    with pytest.raises(ConnectionRefused, match=str(code)):
        await asyncio.wait_for(serving, 20)
    assert cleaned == [True]
    assert len(gateway.attempts) == 1


async def test_a_welcome_that_never_comes(
    gateway: Gateway, agent: Agent, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol's 30 s, made short for the test."""
    import fairlead.agent.connector as connector

    monkeypatch.setattr(connector, "WELCOME_TIMEOUT", 0.3)
    serve(agent)
    silent = await gateway.accept()
    await silent.expect(Hello)
    again = await gateway.accept()
    hello = await again.welcome()
    assert hello.conn > silent.of(Hello)[0].conn
    # Whatever comes on the connection that was replaced is not heard.
    await silent.close(4507)


async def test_a_protocol_error_of_the_gateway_is_no_reason_to_stay_away(
    gateway: Gateway, agent: Agent, serve: Serve
) -> None:
    serving = serve(agent)
    link = await gateway.linked()
    await link.socket.send("text on a binary link")
    assert await link.closed() == 4501
    link = await gateway.linked()
    await link.socket.send(b"\x00")
    assert await link.closed() == 4500
    await gateway.linked()
    assert not serving.done()


async def test_types_of_a_later_version_are_ignored(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    @agent.command("nop")
    async def nop() -> None: ...

    serve(agent)
    link = await gateway.linked()
    await link.socket.send(b"\x82\xa1t\x40\xa1x\x01")
    await link.command("c1", "nop")
    assert (await link.end("c1")).state == "ok"


# -- leaving ---------------------------------------------------------------------------------------


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


async def test_what_bye_says_after_a_drain_holds(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked(retry=NEVER)
    await link.drain(60_000)
    began = time.monotonic()
    await link.close(4000, retry=1500)
    await gateway.attempted(2)
    assert time.monotonic() - began >= 1.49
    await gateway.linked()


async def test_two_drains(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    """Told twice, the second time with another slot: it leaves once."""
    serve(agent)
    link = await gateway.linked(retry=NEVER)
    await link.drain(300)
    await link.drain(200)
    again = await gateway.linked()
    await link.closed()
    await again.send(Hb(ts=1))
    assert len(gateway.attempts) == 2


async def test_stop_says_goodbye(gateway: Gateway, agent: Agent, serve: Serve) -> None:
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
async def test_stop_at_any_moment(gateway: Gateway, agent: Agent, serve: Serve, when: str) -> None:
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
    async with asyncio.timeout(10):
        await serving


async def test_stop_while_nobody_answers_the_dial(serve: Serve) -> None:
    """A connection that is accepted by the kernel and read by nobody."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        agent = Agent(f"ws://127.0.0.1:{mute.getsockname()[1]}", "edge-1", "t")
        serving = serve(agent)
        mute.settimeout(10)
        peer, _ = await asyncio.to_thread(mute.accept)
        agent.stop()
        async with asyncio.timeout(10):
            await serving
        peer.close()


async def test_stop_twice_and_before_it_serves(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    agent.stop()
    serving = serve(agent)
    link = await gateway.accept()
    await link.expect(Hello)
    agent.stop()
    agent.stop()
    async with asyncio.timeout(10):
        await serving


async def test_serving_that_is_cancelled_leaves_nothing(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    cleaned: list[bool] = []

    @agent.command("sleep")
    async def sleep() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            cleaned.append(True)

    @agent.command("nop")
    async def nop() -> None: ...

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


# -- as a process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_and_what_it_runs(
    gateway: Gateway, agent_process: Any, gone: Any, tmp_path: Path, number: int
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


async def test_a_replaced_process_says_why_and_ends(gateway: Gateway, agent_process: Any) -> None:
    process = agent_process("-m", "fairlead", "agent", "run", "--url", gateway.url, "--id", "edge-1")
    link = await gateway.linked()
    await link.close(4507)
    assert await process.exit_code() != 0
    assert "4507" in process.log
    assert "Traceback" not in process.log


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
    gateway: Gateway, agent_process: Any, tmp_path: Path
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
