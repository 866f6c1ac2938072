"""Keeping a link: the greeting, when the agent reconnects, and when it does not."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from fairlead.agent import Agent
from fairlead.errors import ConnectionRefused
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Chunk, Hello, Retry
from fairlead.wire.retry import RetryPolicy

from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import NEVER
from support.waiting import until

# -- greeting --------------------------------------------------------------------------------------


async def test_hello_has_id_boot_and_facts(gateway: Gateway, agent: Agent, serve: Serve) -> None:
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


async def test_nothing_is_sent_between_hello_and_welcome(gateway: Gateway, agent: Agent, serve: Serve) -> None:
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


# -- coming back -----------------------------------------------------------------------------------


async def test_conn_counts_attempts_and_boot_stays_the_same(gateway: Gateway, agent: Agent, serve: Serve) -> None:
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


async def test_each_process_has_its_own_boot_id(gateway: Gateway, serve: Serve) -> None:
    boots = set()
    for _ in range(2):
        agent = Agent(gateway.url, "edge-1", "t")
        serving = serve(agent)
        link = await gateway.accept()
        boots.add((await link.welcome()).boot)
        agent.stop()
        await serving
    assert len(boots) == 2


async def test_the_retry_policy_of_welcome_is_followed(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    """Eight losses under a ceiling of 50 ms take a second; under the defaults a minute and a half, on average."""
    serve(agent)
    link = await gateway.linked(retry=Retry(first=50, base=50, cap=50))
    began = time.monotonic()
    for _ in range(8):
        await link.cut()
        link = await gateway.linked(retry=Retry(first=50, base=50, cap=50))
    assert time.monotonic() - began < 20


def test_delays_have_full_jitter() -> None:
    """The bounds that the agent draws in; the policy itself is tested in the wire's tests."""
    policy = RetryPolicy(first=20_000, base=1_000, cap=8_000)
    ceilings = [20_000, *[1_000] * 4, 2_000, 4_000, 8_000, 8_000]
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


async def test_other_refusals_are_retried_by_the_policy(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked()
    for status in (500, 502, 200):
        gateway.refusals.append((status, {}))
    await link.cut()
    await gateway.linked()
    assert len(gateway.attempts) == 5


@pytest.mark.parametrize("status", [400, 401, 403, 426, 431])
async def test_refusals_that_need_a_person_are_retried_slowly(
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


async def test_a_refusal_of_an_ingress_after_a_link_is_retried_by_the_policy(
    gateway: Gateway, agent: Agent, serve: Serve
) -> None:
    """A Service that is made anew (404), a node that is gone (502, 503 without a time, 504): half of this cap would be
    five minutes.
    """
    serve(agent)
    patient = Retry(first=50, base=50, cap=600_000)
    link = await gateway.linked(retry=patient)
    gateway.refusals.extend([(404, {}), (502, {}), (404, {}), (503, {})])
    await link.cut()
    link = await gateway.linked(retry=patient)
    assert len(gateway.attempts) == 6


async def test_a_404_before_the_first_link_is_retried_by_the_policy(
    gateway: Gateway, agent: Agent, serve: Serve
) -> None:
    """Under the default policy, whose cap is a minute: an agent may start before the Service that it needs."""
    gateway.refusals.extend([(404, {})] * 3)
    serve(agent)
    await gateway.linked()
    assert len(gateway.attempts) == 4


async def test_a_gateway_that_asks_for_no_pause_is_retried_with_pauses(
    gateway: Gateway, agent: Agent, serve: Serve
) -> None:
    """Links that are closed as soon as they are welcomed, and a policy of zeros: after five retries the agent's own."""
    serve(agent)
    loop = asyncio.get_running_loop()
    until = loop.time() + 4
    while (left := until - loop.time()) > 0:
        try:
            async with asyncio.timeout(left):
                link = await gateway.linked(retry=Retry(first=0, base=0, cap=0))
                await link.close(4000, retry=0)
        except TimeoutError:
            break
    # Six attempts without a pause, then ceilings of 2, 4, 8 s: more than 20 in 4 s would be a draw in a million.
    assert 6 <= len(gateway.attempts) <= 20


async def test_an_absurdly_long_pause_is_shortened(
    gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A day in a bye, 300 years in Retry-After, the largest number in a policy: ten minutes at the most."""
    largest = (1 << 53) - 1
    with caplog.at_level("INFO", "fairlead.agent"):
        for case in ("bye", "header", "policy"):
            if case == "header":
                gateway.refusals.append((503, {"Retry-After": "9" * 12}))
            before = len(caplog.records)
            agent = Agent(gateway.url, "edge-1", "t")
            serving = serve(agent)
            if case == "bye":
                link = await gateway.linked()
                await link.close(4000, retry=86_400_000)
            elif case == "policy":
                link = await gateway.linked(retry=Retry(first=largest, base=largest, cap=largest))
                await link.cut()
            async with asyncio.timeout(20):
                while not (pauses := [r for r in caplog.records[before:] if "connecting again" in r.getMessage()]):
                    await asyncio.sleep(0.01)
            seconds = float(pauses[0].getMessage().rpartition(" in ")[2].removesuffix(" s"))
            assert seconds <= 600, case
            agent.stop()
            await asyncio.wait_for(serving, 20)


async def test_a_gateway_that_starts_later_is_reached(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody listens on the port: it tries on, and can still be stopped."""
    with socket.socket() as held:  # bound, so that nobody else gets the port, and not listening
        held.bind(("127.0.0.1", 0))
        agent = Agent(f"ws://127.0.0.1:{held.getsockname()[1]}", "edge-1", "t")
        with caplog.at_level("INFO", "fairlead.agent"):
            serving = serve(agent)
            await until(lambda: "connecting again" in caplog.text)
        assert not serving.done()
        agent.stop()
        async with asyncio.timeout(20):
            await serving


async def test_the_time_in_bye_is_respected(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked(retry=Retry(first=1, base=1, cap=1))
    began = time.monotonic()
    await link.close(4000, retry=700)
    await gateway.attempted(2)
    assert time.monotonic() - began >= 0.69
    await gateway.linked()


async def test_a_bye_may_ask_for_a_shorter_pause_than_the_policy(gateway: Gateway, agent: Agent, serve: Serve) -> None:
    serve(agent)
    link = await gateway.linked(retry=NEVER)
    await link.close(4000, retry=50)
    await gateway.linked()


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012, 4000, 4003, 4007, 4008, 4408, 4499])
async def test_close_codes_that_mean_reconnect(gateway: Gateway, agent: Agent, serve: Serve, code: int) -> None:
    serving = serve(agent)
    link = await gateway.linked()
    await link.close(code)
    await gateway.linked()
    assert not serving.done()


@pytest.mark.parametrize("code", [4500, 4503, 4507, 4999])
async def test_close_codes_that_end_the_agent(
    gateway: Gateway, agent: Agent, serve: Serve, cleaned: list[bool], code: int
) -> None:
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


async def test_a_missing_welcome_ends_the_attempt(
    gateway: Gateway, agent: Agent, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol's 30 s, made short for the test."""
    import fairlead.agent.link.dialer as dialer

    monkeypatch.setattr(dialer, "WELCOME_TIMEOUT", 0.3)
    serve(agent)
    silent = await gateway.accept()
    await silent.expect(Hello)
    again = await gateway.accept()
    hello = await again.welcome()
    assert hello.conn > silent.of(Hello)[0].conn
    # Whatever comes on the connection that was replaced is not heard.
    await silent.close(4507)


async def test_a_protocol_error_of_the_gateway_is_followed_by_a_reconnect(
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
