"""What a real node says in its row of the links and commands that it has served: the numbers that judge a canary."""

from __future__ import annotations

from fairlead.fleet.node_rows import NodeRows
from fairlead.fleet.reports.traffic import BOUNDS, Traffic
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.wire.messages import Ack, Cancel, End, Error

from support.fixtures import RedisOf
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.plain_http import plain_client
from support.waiting import until


async def traffic(store: Pipeliner) -> Traffic:
    row, _ = await NodeRows(store).look_up("node-1")
    assert row is not None
    assert row.traffic is not None
    return row.traffic


async def test_node_counts_what_it_has_served(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    dial: DialAgent,
    redis_of: RedisOf,
) -> None:
    gateway, store = make_gateway(own_valkey.url), await redis_of(own_valkey)
    api = api_of(gateway)
    assert await traffic(store) == Traffic()
    agent, lost = await dial(gateway, "a"), await dial(gateway, "lost")
    await agent.greet()
    await lost.greet()

    done = await api.start("a")
    await agent.command()
    await agent.send(Ack(id=done), End(id=done, total=0))
    await api.end(done)
    failed = await api.start("a")
    await agent.command()
    await agent.send(Ack(id=failed), End(id=failed, total=0, state="error", error=Error(code="broken")))
    await api.end(failed)
    await api.start("a", deadline=1)
    await agent.expect(Cancel)

    lost.socket.transport.abort()
    async with plain_client() as http:
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        upgrade |= {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "authorization": "Bearer wrong"}
        answer = await http.get(gateway.link.replace("ws", "http") + "/v1/link", headers=upgrade)
        assert answer.status_code == 401

    async def counted() -> bool:
        found = await traffic(store)
        return (found.accepted, found.rejected, found.lost, found.ended, found.failed) == (2, 1, 1, 3, 2)

    await until(counted)
    found = await traffic(store)
    assert found.timed == 2, "what the gateway adds to a command that never ends is not known"
    assert found.slower_than(BOUNDS[-1]) == 0
