"""Connection attempts of one boot: the newest wins, and a number that is too high does not keep an agent out."""

from __future__ import annotations

from fairlead.fleet.directory import ORDERED_MS
from fairlead.fleet.schema import agent_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import CONN_LIMIT, Hello

from support.fixtures import RedisOf
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent


async def test_a_connection_number_that_is_too_high_keeps_an_agent_out_only_for_a_time(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, redis_of: RedisOf
) -> None:
    gateway, store = make_gateway(own_valkey.url), await redis_of(own_valkey)
    impostor = await dial(gateway, "victim")
    await impostor.greet(boot="boot-1", conn=CONN_LIMIT)
    impostor.socket.transport.abort()
    refused = await dial(gateway, "victim")
    await refused.send(Hello(agent="victim", boot="boot-1", conn=5))
    assert await refused.close_code() == CloseCode.SUPERSEDED
    key = agent_key("victim")
    up = integer(await store.submit("HGET", key, "up"))
    await store.submit("HSET", key, "up", up - ORDERED_MS)  # that was so long ago
    welcomed = await dial(gateway, "victim")
    await welcomed.greet(boot="boot-1", conn=6)
    assert await store.submit("HGET", key, "conn") == b"6"
    older = await dial(gateway, "victim")
    await older.send(Hello(agent="victim", boot="boot-1", conn=5))
    assert await older.close_code() == CloseCode.SUPERSEDED, "from now on attempts are ordered again"


async def test_a_connection_number_beyond_the_bound_is_refused(gateway: GatewayProcess, dial: DialAgent) -> None:
    peer = await dial(gateway)
    hello = peer.codec.encode(Hello(agent=peer.agent, boot="boot-1", conn=CONN_LIMIT))
    assert isinstance(hello, bytes)
    await peer.socket.send(hello.replace(CONN_LIMIT.to_bytes(4, "big"), (CONN_LIMIT + 1).to_bytes(4, "big")))
    assert await peer.close_code() == CloseCode.PROTOCOL
