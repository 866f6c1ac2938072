"""Results that are retained as a window: they are removed as they are read, and the agent waits for the reader."""

from __future__ import annotations

import asyncio
import json

import pytest

from fairlead.fleet.schema import out_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer
from fairlead.wire.messages import Ack, Bye, Chunk, Cmd, Credit, End

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.waiting import until

CHUNK = 64 << 10
COUNT = 400
"""25 MiB: more than the store keeps of any command."""
HELD = 6 << 20
"""What the store may hold: 4 MiB, a window of the agent, and what was under way."""


class ChunkSender:
    """An agent that sends COUNT chunks as fast as its credit allows."""

    def __init__(self, peer: ScriptedAgent, cmd: Cmd) -> None:
        self.peer = peer
        self.command = cmd.id
        self.credit_left = cmd.credit
        self.sent = 0
        self.waits = asyncio.Event()

    async def run(self) -> None:
        while self.sent < COUNT:
            while self.credit_left < CHUNK:
                try:
                    async with asyncio.timeout(1.0):
                        message = await self.peer.receive()
                except TimeoutError:
                    self.waits.set()
                    continue
                assert not isinstance(message, Bye), message
                if isinstance(message, Credit):
                    self.credit_left += message.bytes
            self.waits.clear()
            payload = f"{self.sent:08d}".encode() * (CHUNK // 8)
            await self.peer.send(Chunk(id=self.command, n=self.sent, kind="file", payload=payload))
            self.sent += 1
            self.credit_left -= CHUNK
        await self.peer.send(End(id=self.command, total=COUNT))


async def begin(api: GatewayApi, peer: ScriptedAgent) -> ChunkSender:
    command = await api.start(peer.agent, retain="window")
    cmd = await peer.command()
    await peer.send(Ack(id=command))
    return ChunkSender(peer, cmd)


async def read(api: GatewayApi, command: str, offset: int, most: int = COUNT + 1) -> tuple[list[str], bool]:
    """The first octets of each result from `offset` on, at most `most` results in all requests; and whether the end
    arrived."""
    seen: list[str] = []
    while True:
        at = offset + len(seen)
        async with api.http.stream("GET", f"/v1/commands/{command}/results?from={at}&follow=true") as answer:
            assert answer.status_code == 200
            async for raw in answer.aiter_lines():
                line = json.loads(raw)
                if "offset" in line:
                    assert line["offset"] == offset + len(seen)
                    seen.append(line["text"][:8])
                    if len(seen) == most:
                        return seen, False
                elif "end" in line:
                    return seen, True
                elif "more" in line:
                    assert line["more"] == offset + len(seen)


async def test_a_caller_that_does_not_read_slows_the_agent(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api, store = api_of(other), await redis_of(own_valkey)
    peer = await dial(holder)
    await peer.greet()
    source = await begin(api, peer)
    running = asyncio.create_task(source.run())
    async with asyncio.timeout(20):
        await source.waits.wait()
    assert source.sent * CHUNK < HELD  # nobody reads: it waits, far from its end
    seen, ended = await read(api, source.command, 0)
    await running
    assert (seen, ended) == ([f"{n:08d}" for n in range(COUNT)], True)
    assert integer(await store.submit("XLEN", out_key(source.command))) * CHUNK < HELD
    gone = await api.http.get(f"/v1/commands/{source.command}/results?from=0")
    assert (gone.status_code, gone.json()["code"]) == (410, "results_trimmed")
    assert gone.json()["first"] > 0


async def test_a_reader_that_disconnects_continues_where_it_was(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    source = await begin(api, peer)
    running = asyncio.create_task(source.run())
    seen: list[str] = []
    ended = False
    while not ended:
        part, ended = await read(api, source.command, len(seen), most=90)
        seen += part
    await running
    assert seen == [f"{n:08d}" for n in range(COUNT)]


async def test_an_offset_beyond_the_results_is_refused(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send_output(command, 0, "one")
    await peer.send(End(id=command, total=1))
    await api.end(command)
    answer = await api.http.get(f"/v1/commands/{command}/results?from=2")
    assert (answer.status_code, answer.json()["field"]) == (422, "from")
    assert "expected at most 1, the number of results" in answer.json()["detail"]


async def test_a_follower_that_is_ahead_of_an_open_command_waits_for_it(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """It may have read what Redis has lost since, and what the agent is going to send again."""
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send_output(command, 0, "one")
    assert (await api.http.get(f"/v1/commands/{command}/results?from=2")).status_code == 422
    follower = asyncio.create_task(api.lines(command, 2))
    async with api.http.stream("GET", f"/v1/commands/{command}/results?from=2&follow=true") as waiting:
        assert waiting.status_code == 200
        for n, text in enumerate(("two", "three"), 1):
            await peer.send_output(command, n, text)
        await peer.send(End(id=command, total=3))
        seen = [json.loads(line) for line in [line async for line in waiting.aiter_lines()] if line != "{}"]
    assert [line["text"] for line in seen[:-1]] == ["three"]
    assert seen[-1]["end"]["state"] == "ok"
    assert (await follower)[0]["text"] == "three"


@pytest.mark.parametrize("apart", [True, False], ids=["one by one", "at once"])
async def test_a_follower_that_had_read_all_results_before_they_were_sent_again_gets_the_end(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, apart: bool
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    async with api.http.stream("GET", f"/v1/commands/{command}/results?from=2&follow=true") as waiting:
        for n, text in enumerate(("one", "two")):
            await peer.send_output(command, n, text)
            if apart:
                await until(lambda n=n: _count(api, command, n + 1))  # type: ignore[misc]
        await peer.send(End(id=command, total=2))
        seen = [json.loads(line) for line in [line async for line in waiting.aiter_lines()] if line != "{}"]
    assert [line["end"]["state"] for line in seen] == ["ok"]


async def _count(api: GatewayApi, command: str, count: int) -> bool:
    return len(await api.lines(command, follow=False)) == count


async def test_a_follower_of_more_than_there_ever_was_is_told_so_at_the_end(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    async with api.http.stream("GET", f"/v1/commands/{command}/results?from=5&follow=true") as waiting:
        await peer.send_output(command, 0, "one")
        await peer.send(End(id=command, total=1))
        seen = [json.loads(line) for line in [line async for line in waiting.aiter_lines()] if line != "{}"]
    (last,) = seen
    assert last["error"]["code"] == "invalid_request"
    assert "expected at most 1, the number of results" in last["error"]["message"]
