"""Output that costs more than its octets: chunks without any, and of one, bounded by no credit and no sum of sizes."""

from __future__ import annotations

import pytest

from fairlead.fleet.schema import out_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer
from fairlead.wire.messages import Ack, Chunk, Cmd, End

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent

pytestmark = pytest.mark.timeout(120)

LIMIT = 64 << 10
"""Bytes of output that the gateway keeps of one command."""
ENTRY = 64
"""Bytes that each chunk counts besides its payload."""
COUNT = 3_000


@pytest.fixture
def small_gateway(own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> GatewayProcess:
    return make_gateway(own_valkey.url, "--output-limit", str(LIMIT))


async def begin(api: GatewayApi, peer: ScriptedAgent, retain: str = "all") -> Cmd:
    await peer.greet()
    await api.start(peer.agent, retain=retain)
    command = await peer.command()
    await peer.send(Ack(id=command.id))
    return command


def chunks(command: str, payload: bytes, count: int = COUNT) -> list[Chunk]:
    return [Chunk(id=command, n=n, kind="k" * 64, payload=payload) for n in range(count)]


@pytest.mark.parametrize("payload", [b"", b"x"])
async def test_chunks_that_are_nearly_empty_take_no_more_than_the_output_limit(
    small_gateway: GatewayProcess, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf,
    dial: DialAgent, payload: bytes,
) -> None:  # fmt: skip
    api, store, peer = api_of(small_gateway), await redis_of(own_valkey), await dial(small_gateway)
    command = (await begin(api, peer)).id
    await peer.send(*chunks(command, payload), End(id=command, total=COUNT))
    assert (await api.end(command))["state"] == "ok"
    assert integer(await store.submit("XLEN", out_key(command))) == LIMIT // ENTRY
    *results, last = await api.lines(command)
    assert (len(results), last["end"]["truncated"]) == (LIMIT // ENTRY, True)


async def test_a_reader_of_a_window_of_nearly_empty_chunks_gets_all_of_them(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, redis_of: RedisOf, dial: DialAgent
) -> None:
    """They count for what they take, so a reader confirms them in time, with its next request, and they are removed."""
    gateway = make_gateway(own_valkey.url)
    api, store, peer = api_of(gateway), await redis_of(own_valkey), await dial(gateway)
    command = (await begin(api, peer, retain="window")).id
    count = 80_000  # more than 4 MiB, above which the agent gets no credit
    await peer.send(*chunks(command, b"x", count), End(id=command, total=count))
    at, ended = 0, False
    while not ended:
        for line in await api.lines(command, at):
            at += "offset" in line
            ended = ended or line.get("end", {}).get("state") == "ok"
    assert at == count
    assert integer(await store.submit("XLEN", out_key(command))) * ENTRY < (3 << 20)
