"""Links that are lost, half-open, slow or replaced: commands go on, on the next link or as fast as the agent reads."""

from __future__ import annotations

import asyncio
import time

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Chunk, Cmd, End, Hb, Hello, Resume, Rx

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def test_a_command_resumes_after_a_lost_link_where_its_stored_results_end(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    first = await peer.greet()
    command = await api.start(peer.agent)
    never_seen = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.send_output(command, 0, "a")
    while (await peer.expect(Rx)).s < 2:
        pass
    await peer.send_output(command, 1, "b")
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
        await again.send_output(command, n, "abc"[n])
    await again.send(End(id=command, total=3), Ack(id=never_seen), End(id=never_seen, total=0))
    assert (await api.end(command))["state"] == "ok"
    assert await api.output(command) == "abc"
    assert (await api.end(never_seen))["state"] == "ok"


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
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
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


async def test_input_follows_a_command_that_is_sent_again(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """The first link was half-open: neither the command nor its input arrived."""
    first = await dial(gateway)
    await first.greet(conn=1)
    command = await api.start(first.agent)
    await first.command()  # and it is lost: no ack
    for n in range(3):
        await api.http.post(f"/v1/commands/{command}/input?n={n}", content=f"{n}".encode())
    second = await dial(gateway, first.agent)
    await second.greet(conn=2)
    seen = [await second.receive() for _ in range(4)]
    assert isinstance(seen[0], Cmd)
    assert [message.payload for message in seen[1:] if isinstance(message, Chunk)] == [b"0", b"1", b"2"]


async def test_repeated_cancels_do_not_delay_the_end(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    began = time.monotonic()
    while (await api.get(command))["targets"][0]["end"] is None:
        await api.http.delete(f"/v1/commands/{command}")
        assert time.monotonic() - began < 15
        await asyncio.sleep(0.5)
    assert (await api.end(command))["error"]["code"] == "cancel_unconfirmed"
