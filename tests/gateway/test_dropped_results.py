"""Results of ended commands are a window: the oldest are dropped to make room, and whoever asks for them is told so."""

from __future__ import annotations

import json
import signal
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.retention.kept_results import KeptResults
from fairlead.fleet.schema import cmd_key, kept_keys, out_key
from fairlead.routing.retention.result_dropper import fair_share
from fairlead.shards import agent_shard
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items, text
from fairlead.wire.messages import Ack, Chunk, Cmd, End, Error

from support.fixtures import RedisOf
from support.gateway.metrics import metric
from support.gateway.platform_api import PLATFORM, GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.waiting import until

pytestmark = pytest.mark.timeout(120)

MIB = 1024 * 1024
CHUNK = 64 * 1024
LIMIT = 2 * MIB
BEHIND = 1.0
"""Seconds that a node may be behind: it looks each quarter of a second, and the machine is busy."""
CLIENTS = 4 * MIB
"""What Valkey needs for its clients."""


async def run(api: GatewayApi, peer: ScriptedAgent, chunks: int, payload: bytes = b"", method: str = "work") -> str:
    """Run one command that writes `chunks` chunks and returns `payload`."""
    command = await api.start(peer.agent, method)
    assert (await peer.expect(Cmd)).id == command
    sent = (Chunk(id=command, n=n, kind="stdout", payload=b"x" * CHUNK) for n in range(chunks))
    await peer.send(Ack(id=command), *sent, End(id=command, total=chunks, payload=payload))
    assert (await api.end(command))["state"] == "ok"
    return command


async def used(store: Pipeliner) -> int:
    """As Valkey compares it with its maxmemory."""
    lines = text(await store.submit("INFO", "memory")).splitlines()
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(info["used_memory"]) - int(info["mem_not_counted_for_evict"])


async def kept(store: Pipeliner, agent: str) -> int:
    """The bytes that are noted for the agent's shard."""
    by_age, _, kept_bytes = kept_keys(agent_shard(agent))
    while True:
        before = await store.submit("GET", kept_bytes)
        total = sum(int(text(one).split()[2]) for one in items(await store.submit("ZRANGE", by_age, 0, -1)))
        if await store.submit("GET", kept_bytes) == before:  # otherwise a node has dropped something meanwhile
            assert (0 if before is None else integer(before)) == total
            assert (before is None) == (total == 0)
            return total


async def kept_bytes(store: Pipeliner, agent: str) -> int:
    """The same by the counter alone: beside the dropper, the notes would be of another moment."""
    return int(text(await store.submit("GET", kept_keys(agent_shard(agent))[2]) or b"0"))


async def make_due(store: Pipeliner, agent: str) -> None:
    """Have the time pass for which the results of the agent's shard are kept."""
    _, by_time, _ = kept_keys(agent_shard(agent))
    for one in items(await store.submit("ZRANGE", by_time, 0, -1)):
        await store.submit("ZADD", by_time, 1, text(one))


async def test_memory_holds_a_window_of_results_under_a_stream_of_large_ones(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateways = [make_gateway(own_valkey.url, f"--results-limit={LIMIT}", name=name) for name in ("node-1", "node-2")]
    api, store = api_of(gateways[0]), await redis_of(own_valkey)
    peer = await dial(gateways[1])
    await peer.greet()
    before, began = await used(store), time.monotonic()
    commands, most = [], 0
    for _ in range(400):
        commands.append(await run(api, peer, 4))
        most = max(most, await used(store) - before)
    sent = len(commands) * 4 * CHUNK  # 100 MiB
    assert most < LIMIT + CLIENTS + sent / (time.monotonic() - began) * BEHIND < sent / 2

    async def within() -> bool:
        return await kept_bytes(store, peer.agent) <= LIMIT

    await until(within)
    assert LIMIT // 2 < await kept(store, peer.agent) <= LIMIT  # and no more was dropped than had to be
    assert await used(store) - before < LIMIT + 2 * MIB
    assert integer(await store.submit("EXISTS", out_key(commands[0]))) == 0
    first, last = await api.get(commands[0]), await api.get(commands[-1])
    assert (first["state"], first["results"], first["targets"][0]["end"]["dropped"]) == ("ok", 4, True)
    assert first["dropped"] is not None
    assert (last["dropped"], last["targets"][0]["end"]["dropped"]) == (None, False)
    assert len(await api.output(commands[-1])) == 4 * CHUNK
    dropped = [await metric(gateway, "fairlead_results_dropped_total") for gateway in gateways]
    assert sum(dropped) >= 390
    # Whoever asks for what was dropped is told so, from any offset and at any node; the end is still there.
    for gateway, start in ((gateways[0], 0), (gateways[1], 3)):
        gone = await api_of(gateway).http.get(f"/v1/commands/{commands[0]}/results?from={start}&follow=true")
        assert (gone.status_code, gone.json()["code"], gone.json()["first"]) == (410, "results_dropped", 4)
        assert "after it had ended" in gone.json()["detail"]
    (line,) = await api.lines(commands[0], start=4)
    assert (line["end"]["state"], line["end"]["total"], line["end"]["dropped"]) == ("ok", 4, True)


async def test_a_large_end_loses_its_payload_and_never_its_error(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()
    large = b'"' + b"y" * 20_000 + b'"'
    succeeded = await run(api, peer, 0, large)
    failed = await api.start(peer.agent)
    assert (await peer.expect(Cmd)).id == failed
    error = Error(code="broken", message="it broke", details={"line": 7})
    await peer.send(Ack(id=failed), End(id=failed, total=0, state="error", payload=large, error=error))
    assert len((await api.end(failed))["payload"]) == 20_000
    await make_due(store, peer.agent)
    await until(partial(is_dropped, api, failed))
    await until(partial(is_dropped, api, succeeded))
    end = await api.end(failed)
    assert (end["payload"], end["dropped"], end["state"]) == (None, True, "failed")
    assert (end["error"]["code"], end["error"]["message"], end["error"]["details"]) == (
        "broken",
        "it broke",
        {"line": 7},
    )
    end = await api.end(succeeded)
    assert (end["payload"], end["dropped"], end["error"]) == (None, True, None)
    assert await kept(store, peer.agent) == 0


async def is_dropped(api: GatewayApi, command: str) -> bool:
    return bool((await api.get(command))["dropped"])


async def test_a_method_with_a_limit_keeps_more_than_that_for_a_minute(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url, "--method-results-limit=big=1000000,*=100000")
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()
    over, under, big = await run(api, peer, 2), await run(api, peer, 1), await run(api, peer, 2, method="big")
    _, by_time, _ = kept_keys(agent_shard(peer.agent))
    noted = items(await store.submit("ZRANGE", by_time, 0, -1, "WITHSCORES"))
    due = {
        text(member): float(text(at)) / 1000 - time.time() for member, at in zip(noted[::2], noted[1::2], strict=True)
    }
    left = {member.split()[0]: seconds for member, seconds in due.items()}
    assert 0 < left[over] <= 60 < 3500 < left[under] < 3700
    assert left[big] > 3500
    assert len(await api.output(over)) == 2 * CHUNK  # whoever follows it has a minute
    await store.submit("ZADD", by_time, 1, next(member for member in due if member.startswith(over)))
    await until(partial(is_dropped, api, over))
    assert not await is_dropped(api, under)
    assert not await is_dropped(api, big)


async def run_in_two_steps(api: GatewayApi, peer: ScriptedAgent, output: bytes, method: str = "work") -> str:
    """Run one command whose output is stored before its end."""
    command = await api.start(peer.agent, method)
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=output))

    async def stored() -> bool:
        return bool((await api.get(command))["results"])

    await until(stored)
    await peer.send(End(id=command, total=1, payload=b'{"exit_code":0}'))
    assert (await api.end(command))["state"] == "ok"
    return command


async def test_small_results_are_part_of_the_window_and_in_the_record(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url, "--results-limit=20000")
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()
    tiny = await run_in_two_steps(api, peer, b"t" * 100)
    assert await kept(store, peer.agent) == 0  # less than the record, which stays
    commands = [await run_in_two_steps(api, peer, b"s" * 1_000) for _ in range(30)]
    assert (
        integer(await store.submit("EXISTS", out_key(tiny), *map(out_key, commands))) == 0
    )  # no stream for a few bytes

    async def within() -> bool:
        return await kept_bytes(store, peer.agent) <= 20_000

    await until(within)
    assert await kept(store, peer.agent) > 10_000
    dropped = [await is_dropped(api, command) for command in commands]
    assert dropped == sorted(dropped, reverse=True)  # the oldest
    assert (dropped[0], dropped[-1], await is_dropped(api, tiny)) == (True, False, False)
    assert (await api.output(tiny), await api.output(commands[-1])) == ("t" * 100, "s" * 1_000)
    gone = await api.http.get(f"/v1/commands/{commands[0]}/results?from=0")
    assert (gone.status_code, gone.json()["code"], gone.json()["first"]) == (410, "results_dropped", 1)
    (line,) = await api.lines(commands[0], start=1)
    assert (line["end"]["state"], line["end"]["payload"]) == ("ok", {"exit_code": 0})
    assert integer(await store.submit("HEXISTS", cmd_key(commands[0]), "few")) == 0


async def test_a_method_may_keep_less_than_any_other_result(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url, "--method-results-limit=quiet=0")
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()
    empty = await run(api, peer, 0, b"1", method="quiet")
    quiet = await run_in_two_steps(api, peer, b"t" * 100, "quiet")
    other = await run_in_two_steps(api, peer, b"t" * 100)
    _, by_time, _ = kept_keys(agent_shard(peer.agent))
    (noted,) = items(await store.submit("ZRANGE", by_time, 0, -1))
    assert text(noted).startswith(quiet)
    assert float(text(await store.submit("ZSCORE", by_time, text(noted)))) / 1000 - time.time() <= 60
    await make_due(store, peer.agent)
    await until(partial(is_dropped, api, quiet))
    assert (await api.end(empty))["payload"] == 1
    assert await api.output(other) == "t" * 100


async def test_what_a_later_run_has_made_void_stays_out_of_the_record(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet(boot="boot-1")
    command = await api.start(peer.agent, retry="safe")
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"first"))

    async def stored() -> bool:
        return bool((await api.get(command))["results"])

    await until(stored)
    again = await dial(gateway, peer.agent)
    await again.greet(boot="boot-2")
    assert (await again.expect(Cmd)).id == command
    await again.send(
        Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"second"), End(id=command, total=1)
    )
    assert (await api.end(command))["state"] == "ok"
    lines = await api.lines(command)
    assert [line.get("text") for line in lines if line.get("kind") == "stdout"] == ["second"]
    assert integer(await store.submit("HEXISTS", cmd_key(command), "few")) == 0


async def test_what_expires_makes_room_and_an_ended_command_keeps_no_payload(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent, payload={"x": "y" * 100_000})
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"x" * CHUNK))
    await peer.send(End(id=command, total=1))
    assert (await api.end(command))["state"] == "ok"
    assert text(await store.submit("HGET", cmd_key(command), "payload")) == ""
    assert await kept(store, peer.agent) > CHUNK
    for key in (cmd_key(command), out_key(command)):  # the time of its retention passes
        assert integer(await store.submit("PTTL", key)) > 3_000_000
        await store.submit("PEXPIRE", key, 1)
    await make_due(store, peer.agent)

    async def forgotten() -> bool:
        return await kept(store, peer.agent) == 0

    await until(forgotten)
    assert integer(await store.submit("EXISTS", cmd_key(command))) == 0
    assert await metric(gateway, "fairlead_results_dropped_total") == 0


async def test_output_of_a_command_that_did_not_end_in_time_is_part_of_the_window(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent, deadline=1)
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"x" * CHUNK))
    assert (await api.end(command))["state"] == "timeout"
    assert CHUNK < await kept(store, peer.agent) < CHUNK + 1_000


async def test_a_run_tells_which_outputs_were_dropped(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    peers = [await dial(gateway) for _ in range(3)]
    for peer in peers:
        await peer.greet()
    posted = await api.http.post("/v1/runs", json={"method": "work", "agents": [peer.agent for peer in peers]})
    assert posted.status_code == 202, posted.text
    run_id = posted.json()["id"]
    for peer, chunks in zip(peers, (2, 0, 1), strict=True):
        command = (await peer.expect(Cmd)).id
        sent = (Chunk(id=command, n=n, kind="stdout", payload=b"x" * 10_000) for n in range(chunks))
        await peer.send(Ack(id=command), *sent, End(id=command, total=chunks, payload=b'{"exit_code":0}'))

    async def ended() -> bool:
        return bool((await api.http.get(f"/v1/runs/{run_id}")).json()["ended"])

    await until(ended)
    before = await run_lines(api, run_id)
    assert [len(before[peer.agent]["output"]) for peer in peers] == [1, 0, 1]
    await make_due(store, peers[0].agent)
    await until(partial(is_dropped, api, before[peers[0].agent]["command"]))
    after = await run_lines(api, run_id)
    first = after[peers[0].agent]
    assert (first["state"], first["output"], first["dropped"], first["payload"]) == ("ok", [], True, {"exit_code": 0})
    assert first["digest"] == before[peers[0].agent]["digest"]
    other = after[peers[1].agent]
    assert (other["output"], other["dropped"]) == ([], False)


async def run_lines(api: GatewayApi, run_id: str) -> dict[str, dict[str, Any]]:
    answer = await api.http.get(f"/v1/runs/{run_id}/results", headers=PLATFORM)
    assert answer.status_code == 200, answer.text
    lines = [line for raw in answer.iter_lines() if (line := json.loads(raw))]
    return {line["agent"]: line for line in lines if "agent" in line}


async def test_a_run_that_another_node_takes_over_counts_a_target_whose_results_are_gone(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    owner, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    kept_results = KeptResults(await redis_of(own_valkey))
    peers = [await dial(other), await dial(other)]
    for peer in peers:
        await peer.greet()
    body = {"method": "work", "agents": [peer.agent for peer in peers]}
    posted = await api_of(owner).http.post("/v1/runs", json=body)
    commands = [(await peer.expect(Cmd)).id for peer in peers]
    owner.signal(signal.SIGKILL)  # it never learns how the first target ended
    await peers[0].send(Ack(id=commands[0]), Chunk(id=commands[0], n=0, kind="stdout", payload=b"x" * CHUNK))
    await peers[0].send(End(id=commands[0], total=1))
    api = api_of(other)
    assert (await api.end(commands[0]))["state"] == "ok"
    (noted,) = (await kept_results.find(agent_shard(peers[0].agent), 0)).to_drop
    assert await kept_results.drop(noted)
    assert not await kept_results.drop(noted)
    await peers[1].send(Ack(id=commands[1]), End(id=commands[1], total=0))
    ended: dict[str, Any] = {}

    async def is_over() -> bool:
        ended.update((await api.http.get(f"/v1/runs/{posted.json()['id']}")).json())
        return bool(ended["ended"])

    await until(is_over)
    assert (ended["state"], ended["counts"]) == ("done", {"ok": 2})
    assert (await run_lines(api, ended["id"]))[peers[0].agent]["dropped"] is True


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=64), st.integers(0, 100_000))
def test_a_share_is_fair_and_together_they_keep_the_limit(sizes: list[int], limit: int) -> None:
    share = fair_share(sizes, limit)
    assert sum(min(size, share) for size in sizes) <= limit
    if sum(sizes) <= limit:
        assert share >= max(sizes)  # nothing is dropped that has room
    else:
        assert sum(min(size, share + 1) for size in sizes) > limit  # nobody could keep more
