"""Links and their rows in Redis differ: the node finds that, and the newer of two links wins."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest

from fairlead.bus.inbox import inbox_key
from fairlead.fleet.schema import agent_key, index_key
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.agents import reconciler
from fairlead.routing.agents.reconciler import Reconciler
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.shards import agent_shard
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import text
from fairlead.telemetry.metrics import Metrics
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Hb

from support.fixtures import RedisOf
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.plain_http import plain_client
from support.waiting import until


async def test_a_lost_eviction_is_made_up_for(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, redis_of: RedisOf
) -> None:
    holder = make_gateway(own_valkey.url)
    store = await redis_of(own_valkey)
    peer = await dial(holder)
    welcome = await peer.greet()
    await store.submit(
        "HSET", agent_key(peer.agent), "lease", "node-2#elsewhere", "gen", welcome.gen + 1, "sid", "newer"
    )  # fmt: skip
    await store.submit("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert await peer.close_code() == CloseCode.SUPERSEDED


async def test_an_agent_that_the_index_has_lost_is_listed_again(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()

    async def listed() -> bool:
        found = (await api.http.get("/v1/agents")).json()["agents"]
        return [agent["id"] for agent in found] == [peer.agent]

    await until(listed)
    await store.submit("ZREM", index_key(agent_shard(peer.agent)), peer.agent)
    assert not await listed()
    await store.submit("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await until(listed)


async def test_an_older_process_behind_a_frozen_node_is_refused(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, redis_of: RedisOf
) -> None:
    """What it still sends is refused, and the close code says that another process of the agent is linked."""
    frozen, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    store = await redis_of(own_valkey)
    old = await dial(frozen)
    await old.greet(boot="boot-1")
    lease = text(await store.submit("HGET", agent_key(old.agent), "lease"))
    frozen.signal(signal.SIGSTOP)
    new = await dial(other, old.agent)
    await new.greet(boot="boot-2")
    await store.submit("UNLINK", inbox_key(lease))  # the eviction is lost
    await store.submit("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    frozen.signal(signal.SIGCONT)
    assert await old.close_code() == CloseCode.REPLACED
    await new.send(Hb(ts=1))
    await new.expect(Hb)


async def test_a_row_that_cannot_be_read_does_not_keep_other_links_from_being_compared(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, redis_of: RedisOf
) -> None:
    """One agent's row is malformed, another's is lost: both agents are claimed again, and the node stays ready."""
    gateway = make_gateway(own_valkey.url)
    store = await redis_of(own_valkey)
    broken, lost = await dial(gateway, "a-broken"), await dial(gateway, "b-lost")
    for peer in (broken, lost):
        await peer.greet()
    await store.submit("HSET", agent_key(broken.agent), "gen", "many")
    await store.submit("DEL", agent_key(lost.agent))
    await store.submit("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # the node doubts when it connects again

    async def claimed() -> bool:
        found = [await store.submit("HGET", agent_key(peer.agent), "gen") for peer in (broken, lost)]
        return all(isinstance(one, bytes) and one.isdigit() for one in found)

    async def logged() -> bool:
        return "claimed 2 agents again" in gateway.log()

    await until(claimed)
    await until(logged)
    async with plain_client() as http:
        assert (await http.get(f"{gateway.admin}/readyz")).text.strip() == "ok"


async def test_an_error_in_one_comparison_is_logged_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class FailsOnce(Hub):
        rounds = 0

        def __iter__(self) -> Iterator[Session]:
            self.rounds += 1
            if self.rounds == 1:
                raise RuntimeError("a defect on purpose")
            return super().__iter__()

    monkeypatch.setattr(reconciler, "FAILED_PAUSE", 0.01)
    hub, unused = FailsOnce(), cast("Any", None)
    fleet = FleetStore(*[unused] * len(dataclasses.fields(FleetStore)))
    membership = Membership("node-1")
    compares = Reconciler(fleet, hub, unused, unused, membership, Metrics())
    membership.reconciliation.request()
    loop = asyncio.create_task(compares.run())
    await until(lambda: hub.rounds >= 2 and not membership.reconciliation.pending)
    assert "a defect on purpose" in caplog.text
    loop.cancel()
