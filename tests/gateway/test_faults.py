"""Faults injected into real processes: a frozen or killed Valkey, lost links, slow readers, a stopped node.

What must hold in each: nothing acknowledged is lost, nothing runs twice, callers learn what happened, and the fleet
recovers by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal

import websockets

from fairlead.fleet.schema import agent_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer, items, octets
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Chunk, Cmd, Drain, End, Hb, Hello, Resume, Rx

from support.fixtures import RedisOf, UntilAnswered
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.waiting import WAIT


async def test_valkey_frozen_while_agents_connect(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """Valkey does not answer for 12 s: afterwards every agent is online, and none was told to stay away."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    old = [await dial(gateway) for _ in range(5)]
    await asyncio.gather(*(peer.greet() for peer in old))
    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        new = await asyncio.gather(*(dial(gateway) for _ in range(40)))
        welcomes = [asyncio.ensure_future(peer.greet()) for peer in new]
        # One that gives up and dials again, as an agent with less patience does.
        restless = await dial(gateway)
        first = asyncio.ensure_future(restless.greet(conn=1))
        await asyncio.sleep(6)
        first.cancel()
        await restless.socket.close()
        again = await dial(gateway, restless.agent)
        welcomes.append(asyncio.ensure_future(again.greet(conn=2)))
        answer = await api.post({"agent": old[0].agent, "method": "m"})
        assert (answer.status_code, answer.json()["code"]) == (503, "bus_unavailable")
        await asyncio.sleep(6)
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    await asyncio.gather(*welcomes)
    for peer in (*old, *new, again):
        assert (await api.agent(peer.agent))["state"] == "online"
        command = await api.start(peer.agent)
        assert (await peer.command()).id == command
        await peer.send(Ack(id=command), End(id=command, total=0))
        assert (await api.end(command))["state"] == "ok"
    metrics = (await api.http.get(f"{gateway.admin}/metrics")).text
    assert not any(f'code="{code}"' in metrics for code in range(4500, 5000))


async def test_valkey_killed_under_traffic(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """Links stay, commands are refused, the fleet recovers within 10 s, and everything acknowledged is still there."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peers = [await dial(gateway) for _ in range(4)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    commands = [await api.start(peer.agent, deadline=120) for peer in peers]
    acknowledged = [0] * len(peers)
    sent = [0] * len(peers)
    stop = asyncio.Event()

    async def talk(i: int) -> None:
        """Send chunks as far as the receipts allow, and count the receipts."""
        peer, command = peers[i], commands[i]
        await peer.command()
        await peer.send(Ack(id=command))
        while not (stop.is_set() and acknowledged[i] == sent[i] + 1):
            if not stop.is_set() and sent[i] < acknowledged[i] + 50:
                await peer.say(command, sent[i], f"{sent[i]}\n")
                sent[i] += 1
            try:
                async with asyncio.timeout(0.01):
                    acknowledged[i] = (await peer.expect(Rx)).s
            except TimeoutError:
                pass
        await peer.send(End(id=command, total=sent[i]))

    talking = [asyncio.ensure_future(talk(i)) for i in range(len(peers))]
    while min(acknowledged) < 100:
        await asyncio.sleep(0.05)
    os.kill(own_valkey.pid, signal.SIGKILL)
    loop = asyncio.get_running_loop()
    refused = []
    for _ in range(5):
        async with asyncio.timeout(WAIT):
            answer = await api.post({"agent": peers[0].agent, "method": "m"})
        refused.append((answer.status_code, answer.json()["code"]))
    # The first may have been on its way to Redis before the node saw the end of the connection.
    assert refused[0] in {(503, "outcome_unknown"), (503, "bus_unavailable")}
    assert refused[1:] == [(503, "bus_unavailable")] * 4
    before = list(acknowledged)
    await own_valkey.restart()
    healed = loop.time() + 10
    while any(now < then + 50 for now, then in zip(acknowledged, before, strict=True)):
        assert loop.time() < healed, "not recovered within 10 s"
        await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*talking)
    ends = [await api.end(command) for command in commands]
    assert [end["state"] for end in ends] == ["ok"] * len(peers)
    store = await redis_of(own_valkey)
    for i, command in enumerate(commands):
        assert ends[i]["total"] == sent[i]
        assert await store.submit("XLEN", f"fl1:out:{{{command}}}") == sent[i]
        assert await api.output(command) == "".join(f"{n}\n" for n in range(sent[i]))
    assert all(peer.socket.state is websockets.State.OPEN for peer in peers)


async def test_a_command_resumes_after_a_lost_link_where_its_stored_results_end(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    first = await peer.greet()
    command = await api.start(peer.agent)
    never_seen = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.say(command, 0, "a")
    while (await peer.expect(Rx)).s < 2:
        pass
    await peer.say(command, 1, "b")
    peer.socket.transport.abort()
    again = await dial(gateway, peer.agent)
    welcome = await again.greet(conn=2, resume=Resume(sid=first.sid), have={command: 0})
    assert welcome.resumed
    assert welcome.gen > first.gen
    assert welcome.have[command] in (1, 2)  # the chunk that was under way may or may not have arrived
    assert welcome.have[never_seen] == 0
    resent = await again.command()
    assert (resent.id, resent.attempt) == (never_seen, 2)
    for n in range(welcome.have[command], 3):
        await again.say(command, n, "abc"[n])
    await again.send(End(id=command, total=3), Ack(id=never_seen), End(id=never_seen, total=0))
    assert (await api.end(command))["state"] == "ok"
    assert await api.output(command) == "abc"
    assert (await api.end(never_seen))["state"] == "ok"


async def test_a_restarted_agent_makes_the_outcome_unknown_and_runs_nothing_twice(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    running = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=running))
    await peer.say(running, 0, "half")
    await peer.expect(Rx)
    peer.socket.transport.abort()
    again = await dial(gateway, peer.agent)
    welcome = await again.greet(boot="boot-2")
    assert not welcome.resumed
    assert welcome.have == {}
    end = await api.end(running)
    assert (end["state"], end["error"]["code"]) == ("failed", "outcome_unknown")
    marker = await api.start(peer.agent, "marker")
    assert (await again.command()).id == marker


async def test_takeover_closes_the_older_link_with_the_reason(gateway: GatewayProcess, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet(conn=1)
    same_boot = await dial(gateway, peer.agent)
    await same_boot.greet(conn=2)
    assert await peer.close_code() == CloseCode.SUPERSEDED
    other_boot = await dial(gateway, peer.agent)
    await other_boot.greet(boot="boot-2")
    assert await same_boot.close_code() == CloseCode.REPLACED
    late = await dial(gateway, peer.agent)
    await other_boot.socket.close()
    newest = await dial(gateway, peer.agent)
    await newest.greet(boot="boot-2", conn=9)
    await late.send(Hello(agent=peer.agent, boot="boot-2", conn=5))
    assert await late.close_code() == CloseCode.SUPERSEDED


async def test_an_agent_that_stops_reading_is_closed_and_takes_bounded_memory(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, until: UntilAnswered
) -> None:
    gateway = make_gateway(own_valkey.url, "--heartbeat", "2")
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    peer.socket.transport.pause_reading()

    async def talk() -> None:
        """The agent goes on sending: it has only stopped reading."""
        while True:
            await peer.send(Hb(ts=1))
            await asyncio.sleep(0.5)

    talking = asyncio.ensure_future(talk())

    def rss() -> int:
        with open(f"/proc/{gateway.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    before = rss()
    payload = "x" * (400 << 10)
    posted = [await api.start(peer.agent, payload=payload, on_offline={"queue": 60}) for _ in range(40)]

    async def closed() -> bool:
        line = 'closed_total{by="gateway",code="4408",then="reconnect"} 1.0'
        return line in (await api.http.get(f"{gateway.admin}/metrics")).text

    await until(closed)
    talking.cancel()
    assert rss() - before < 16 << 10  # KiB: 16 MiB were posted, the queue holds 1
    assert len(posted) == 40

    async def away() -> bool:
        return bool((await api.agent(peer.agent))["state"] == "away")

    await until(away)


async def test_a_fast_agent_cannot_fill_memory(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, until: UntilAnswered
) -> None:
    """With Valkey frozen, an honest agent stops at its window and goes on afterwards."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    cmd = await peer.command()
    os.kill(own_valkey.pid, signal.SIGSTOP)
    count = cmd.credit // 32_768
    for n in range(count):
        await peer.send(Chunk(id=command, n=n, kind="stdout", payload=b"x" * 32_768))
    await asyncio.sleep(2)  # the outage itself: long enough for the store's time-out and its breaker
    os.kill(own_valkey.pid, signal.SIGCONT)
    await peer.send(End(id=command, total=count))

    async def over() -> bool:
        answer = await api.http.get(f"/v1/commands/{command}")
        return bool(answer.status_code == 200 and answer.json()["state"] == "ok")

    await until(over)
    assert len(await api.output(command)) == count * 32_768


async def test_sigterm_announces_the_drain_then_closes_links_at_a_pace_and_exits_with_0(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """The only node: its agents have nowhere to connect before it is back, so it closes their links at their slots."""
    gateway = make_gateway(own_valkey.url, "--drain-rate", "10")
    peers = [await dial(gateway) for _ in range(10)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    loop = asyncio.get_running_loop()
    gateway.signal(signal.SIGTERM)
    signalled = loop.time()

    async def closed_after(peer: ScriptedAgent) -> tuple[int, float]:
        assert (await peer.expect(Drain)).slot <= 1_000  # told when the budget has granted it, for a second ahead
        return await peer.close_code(), loop.time() - signalled

    closes = await asyncio.gather(*map(closed_after, peers))
    assert {code for code, _ in closes} == {CloseCode.RESTART}
    assert max(at for _, at in closes) > 0.6  # paced: not all at once
    assert await asyncio.to_thread(gateway.wait) == 0
    gateway.start()
    assert (await api_of(gateway).agent(peers[0].agent))["state"] == "away"


async def test_commands_survive_a_restart_of_the_node(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """kill -9 of the only node in mid-stream: the agent dials again and the stream goes on."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.say(command, 0, "before ")
    while (await peer.expect(Rx)).s < 2:
        pass
    gateway.signal(signal.SIGKILL)
    await asyncio.to_thread(gateway.wait)
    gateway.start()
    again = await dial(gateway, peer.agent)
    welcome = await again.greet(conn=2)
    assert welcome.have == {command: 1}
    await again.say(command, 1, "after")
    await again.send(End(id=command, total=2))
    api = api_of(gateway)
    assert (await api.end(command))["state"] == "ok"
    assert await api.output(command) == "before after"


async def test_an_emptied_valkey_is_filled_again(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    redis_of: RedisOf,
    until: UntilAnswered,
) -> None:
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    store = await redis_of(own_valkey)
    await store.submit("FLUSHALL")  # also this node's row: the node must notice that with its next heartbeat

    async def online() -> bool:
        answer = await api.http.get(f"/v1/agents/{peer.agent}")
        return bool(answer.status_code == 200 and answer.json()["state"] == "online")

    await until(online)
    command = await api.start(peer.agent)
    cmd = await peer.expect(Cmd)
    assert cmd.id == command
    await peer.send(Ack(id=command), End(id=command, total=0))
    assert (await api.end(command))["state"] == "ok"


async def test_every_redis_key_has_an_expiry_or_an_owner(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, shared_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.say(command, 0, "x")
    await api.http.post(f"/v1/commands/{command}/input?n=0", content=b"y")
    await api.http.post("/v1/commands", json={"agent": peer.agent, "method": "m"}, headers={"idempotency-key": "k"})
    await peer.send(End(id=command, total=1))
    await api.end(command)
    store = await redis_of(shared_valkey)
    owned = ("fl1:nodes", "fl1:agent:", "fl1:agents:", "fl1:deadlines:", "fl1:events", "fl1:data_epoch")
    for key in map(octets, items(await store.submit("KEYS", "*"))):
        if not key.decode().startswith(owned):
            assert integer(await store.submit("PTTL", key)) > 0, key


async def test_a_backlog_is_delivered_as_fast_as_the_agent_reads(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """24 MiB of commands waited for an agent that reads slowly: it gets them all, on one link."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    await peer.socket.close()
    payload = "x" * (400 << 10)
    posted = [await api.start(peer.agent, payload=payload, on_offline={"queue": 60}) for _ in range(60)]
    again = await dial(gateway, peer.agent)
    await again.greet(boot="boot-2")
    got = []
    for _ in posted:
        got.append((await again.command()).id)
        await asyncio.sleep(0.01)
    assert sorted(got) == sorted(posted)
    assert (await api.agent(peer.agent))["state"] == "online"


async def test_a_node_whose_row_is_gone_claims_its_agents_again(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    redis_of: RedisOf,
    until: UntilAnswered,
) -> None:
    """Only the row is deleted: what is known of the agents stays, and commands go on."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet(facts={"env": "prod"})
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    store = await redis_of(own_valkey)
    lease = await store.submit("HGET", agent_key(peer.agent), "lease")
    await store.submit("DEL", "fl1:node:{node-1}")

    async def claimed_again() -> bool:
        """Wait until the node has claimed the agents again under its new lease."""
        if await store.submit("HGET", agent_key(peer.agent), "lease") == lease:
            return False
        return bool((await api.agent(peer.agent))["state"] == "online")

    await until(claimed_again)
    assert (await api.agent(peer.agent))["facts"] == {"env": "prod"}
    await peer.say(command, 0, "still here")
    await peer.send(End(id=command, total=1))
    assert (await api.end(command))["state"] == "ok"
    after = await api.start(peer.agent)
    assert (await peer.command()).id == after
    assert peer.socket.state is websockets.State.OPEN
