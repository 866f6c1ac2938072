"""A node that cannot welcome links accepts only so many, refuses the others cheaply, and recovers."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from fairlead.hub.opening_links import SHARED
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hello

from support.gateway.metrics import metric
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import AGENT_TOKEN, DialAgent, ScriptedAgent
from support.plain_http import plain_client
from support.waiting import until

pytestmark = pytest.mark.timeout(180)
NOISY, QUIET = "127.0.0.71", "127.0.0.72"
MIB = 1 << 20


@pytest.fixture(scope="module", params=["epoll", "asyncio"])
def accepting(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return ("--link-transport", request.param)


async def refused(gateway: GatewayProcess, source: str) -> tuple[int, int]:
    """Ask for a link and return the status of the answer and its Retry-After."""
    port = int(gateway.link.rpartition(":")[2])
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        try:
            writer.write(
                f"GET /v1/link HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                f"Sec-WebSocket-Protocol: {SUBPROTOCOL_MSGPACK}\r\nAuthorization: Bearer {AGENT_TOKEN}\r\n\r\n".encode()
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        finally:
            writer.transport.abort()
    return int(head.split(" ")[1]), int(head.partition("retry-after: ")[2].partition("\r\n")[0] or 0)


async def dial_many(dial: DialAgent, gateway: GatewayProcess, count: int, source: str) -> list[ScriptedAgent]:
    return list(await asyncio.gather(*(dial(gateway, local_addr=(source, 0)) for _ in range(count))))


async def shared_room(gateway: GatewayProcess) -> int:
    """How many links one address may have waiting for their welcome now. The limit follows how long they wait."""
    return int(await metric(gateway, "fairlead_links_opening_limit") * SHARED)


async def rejected(gateway: GatewayProcess) -> int:
    async with plain_client() as http:
        text = (await http.get(f"{gateway.admin}/metrics")).text
    line = next(
        line for line in text.splitlines() if line.startswith('fairlead_handshakes_rejected_total{reason="busy"')
    )
    return int(float(line.rpartition(" ")[2]))


async def test_agents_that_arrive_while_valkey_is_frozen_are_bounded_and_the_node_recovers(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    gateway = make_gateway(own_valkey.url)
    await (await dial(gateway)).greet()
    room = await shared_room(gateway)
    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        waiting = await dial_many(dial, gateway, room, NOISY)
        welcomes = [asyncio.ensure_future(agent.greet()) for agent in waiting]
        assert await metric(gateway, "fairlead_links_opening") == room
        before = psutil.Process(gateway.pid).memory_info().rss
        answers = [
            answer for _ in range(20) for answer in await asyncio.gather(*(refused(gateway, NOISY) for _ in range(50)))
        ]
        assert {status for status, _ in answers} == {503}
        assert all(1 <= after <= 20 for _, after in answers)
        assert await metric(gateway, "fairlead_links_opening") == room
        assert await rejected(gateway) == len(answers)
        grown = psutil.Process(gateway.pid).memory_info().rss - before
        assert grown < 8 * MIB, f"{grown / MIB:.1f} MiB for a thousand refusals"
        other = await dial(gateway, local_addr=(QUIET, 0))
        welcomes.append(asyncio.ensure_future(other.greet()))
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    await asyncio.gather(*welcomes)
    assert await metric(gateway, "fairlead_links_opening") == 0
    again = await dial_many(dial, gateway, await shared_room(gateway), NOISY)
    await asyncio.gather(*(agent.greet() for agent in again))


async def test_agents_that_never_say_hello_do_not_keep_others_out(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    gateway = make_gateway(own_valkey.url, "--hello-timeout", "5")
    silent = await dial_many(dial, gateway, await shared_room(gateway), NOISY)
    assert (await refused(gateway, NOISY))[0] == 503
    quiet = await dial_many(dial, gateway, 20, QUIET)
    await asyncio.gather(*(agent.greet() for agent in quiet))

    async def forgotten() -> bool:
        return await metric(gateway, "fairlead_links_opening") == 0

    await until(forgotten)
    assert {await agent.close_code() for agent in silent} == {4008}
    await (await dial(gateway, local_addr=(NOISY, 0))).greet()


async def test_links_that_end_before_their_welcome_are_not_counted(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    gateway = make_gateway(own_valkey.url)
    agents = await dial_many(dial, gateway, 20, NOISY)
    assert await metric(gateway, "fairlead_links_opening") == 20
    for agent in agents:
        agent.socket.transport.abort()

    async def forgotten() -> bool:
        return await metric(gateway, "fairlead_links_opening") == 0

    await until(forgotten)


async def test_a_link_that_is_refused_after_hello_and_does_not_close_stops_nobody(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    """The oldest claim decides whether a node accepts links, so none may last as long as its agent likes."""
    gateway = make_gateway(own_valkey.url)
    agent = await dial(gateway)
    await agent.greet(conn=2)
    superseded, illegal = await dial(gateway, agent.agent), await dial(gateway, "two words")
    for one in (superseded, illegal):
        await one.send(Hello(agent=one.agent, boot="boot-1", conn=1))
        one.socket.transport.pause_reading()

    async def refused_both() -> bool:
        return await metric(gateway, "fairlead_links") == 3 and await metric(gateway, "fairlead_links_opening") <= 1

    await until(refused_both)
    assert await metric(gateway, "fairlead_oldest_claim_age_seconds") == 0
    await (await dial(gateway)).greet()
