"""How long results are kept, by method."""

from __future__ import annotations

import pytest

from fairlead.fleet.schema import cmd_key
from fairlead.routing.retention.retention import Retention
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer
from fairlead.wire.messages import Ack, Cmd, End

from support.fixtures import RedisOf
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent


def test_a_method_without_an_entry_has_the_default() -> None:
    retention = Retention.parse(60, "exec=5,back.up=7")
    assert [retention.of(method) for method in ("exec", "back.up", "Exec", "other")] == [5_000, 7_000, 60_000, 60_000]
    assert Retention.parse(60, "").of("exec") == 60_000
    limited = Retention.parse(60, "", "exec=0,back.up=7,*=9")
    assert [limited.results_limit(method) for method in ("exec", "back.up", "other")] == [0, 7, 9]
    assert Retention.parse(60, "", "exec=5").results_limit("other") is None


@pytest.mark.timeout(60)
async def test_results_of_a_method_are_kept_as_long_as_its_entry_says(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url, "--retention", "3600", "--method-retention", "brief=100,other=5")
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()
    lives = {}
    for method in ("brief", "work"):
        command = await api.start(peer.agent, method)
        assert (await peer.expect(Cmd)).id == command
        await peer.send(Ack(id=command), End(id=command, total=0, state="ok"))
        assert (await api.end(command))["state"] == "ok"
        lives[method] = integer(await store.submit("PTTL", cmd_key(command)))
    assert 0 < lives["brief"] <= 100_000
    assert 1_000_000 < lives["work"] <= 3_600_000
