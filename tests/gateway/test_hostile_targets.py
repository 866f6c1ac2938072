"""Targets of a run that answer twice, late, wrongly or never: each is in one state, and the sums add up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Chunk, Cmd, Credit, End

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.waiting import until

pytestmark = pytest.mark.timeout(120)

LARGE = bytes(64 << 10)
"""As much as one chunk may have."""


async def begin(api: GatewayApi, agents: list[str], **more: object) -> str:
    body = {"method": "work", "agents": agents, "deadline": 30, **more}
    answer = await api.http.post("/v1/runs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def read(api: GatewayApi, run: str) -> dict[str, Any]:
    found = dict((await api.http.get(f"/v1/runs/{run}")).json())
    assert sum(found["counts"].values()) == found["targets"], found
    return found


async def ended(api: GatewayApi, run: str) -> dict[str, Any]:
    async def over() -> bool:
        return bool((await read(api, run))["ended"])

    await until(over, 60)
    return await read(api, run)


async def linked(dial: DialAgent, gateway: GatewayProcess, count: int) -> list[ScriptedAgent]:
    found = [await dial(gateway) for _ in range(count)]
    for one in found:
        await one.greet()
    return found


async def answer(peer: ScriptedAgent, command: str, **end: Any) -> None:
    """One line of output and an end."""
    await peer.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"well"))
    await peer.send(End(id=command, total=1, **end))


async def answer_within_credit(peer: ScriptedAgent, pieces: list[bytes]) -> str:
    """Output of any size and an end, as an agent sends it that heeds its credit. Returns the id of the command."""
    command = await peer.command()
    await peer.send(Ack(id=command.id))
    left = command.credit
    for n, piece in enumerate(pieces):
        while left < len(piece):
            left += (await peer.expect(Credit)).bytes
        await peer.send(Chunk(id=command.id, n=n, kind="stdout", payload=piece))
        left -= len(piece)
    await peer.send(End(id=command.id, total=len(pieces)))
    return command.id


async def test_a_target_that_answers_twice_has_one_result_and_cannot_take_it_back(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """It says that it was well, and then that it failed: over the same link, and over its next one."""
    honest, twice = await linked(dial, gateway, 2)
    run = await begin(api, [honest.agent, twice.agent], abort_after={"failed": 1})
    await answer(honest, (await honest.command()).id)
    command = (await twice.command()).id
    await answer(twice, command)
    await answer(twice, command, state="error")
    again = await dial(gateway, twice.agent)
    await again.greet(conn=2)
    await answer(again, command, state="error")
    found = await ended(api, run)
    assert (found["state"], found["counts"]) == ("done", {"ok": 2})
    lines = (await api.http.get(f"/v1/runs/{run}/results")).text
    assert lines.count('"agent":') == 2
    assert (await api.get(command))["state"] == "ok"


async def test_a_target_that_answers_late_or_never_timed_out_and_frees_its_place(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    late, never, next_one = await linked(dial, gateway, 3)
    run = await begin(api, [late.agent, never.agent, next_one.agent], concurrency=2, deadline=1)
    slow = (await late.command()).id
    await never.command()
    await answer(next_one, (await next_one.command()).id)  # its turn comes when the others have timed out
    found = await ended(api, run)
    assert (found["state"], found["counts"]) == ("done", {"timeout": 2, "ok": 1})
    await late.send(Ack(id=slow), End(id=slow, total=0))
    probe = await api.start(next_one.agent)  # what was sent before has been read when this is answered
    assert (await next_one.command()).id == probe
    assert await read(api, run) == found, "who answers later than its deadline changes nothing"
    assert (await api.get(slow))["state"] == "timeout"


async def test_a_target_with_a_wrong_digest_is_grouped_by_what_it_has_sent(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """The node makes the digest; what an agent says of one is not heeded."""
    honest, liar, other = await linked(dial, gateway, 3)
    run = await begin(api, [honest.agent, liar.agent, other.agent])
    await answer(honest, (await honest.command()).id)
    await answer(liar, (await liar.command()).id, digest=b"of something else entirely")
    command = (await other.command()).id
    await other.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"bad"), End(id=command, total=1))
    outcomes = (await ended(api, run))["outcomes"]
    assert sorted((one["count"], sorted(one["agents"])) for one in outcomes) == [
        (1, [other.agent]), (2, sorted([honest.agent, liar.agent])),
    ]  # fmt: skip


async def test_a_target_that_breaks_the_order_of_its_output_ends_at_its_deadline(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    honest, broken = await linked(dial, gateway, 2)
    run = await begin(api, [honest.agent, broken.agent], deadline=2)
    await answer(honest, (await honest.command()).id)
    command = (await broken.command()).id
    await broken.send(Ack(id=command), Chunk(id=command, n=5, kind="stdout", payload=b"well"))
    assert await broken.close_code() == 4500
    found = await ended(api, run)
    assert (found["state"], found["counts"]) == ("done", {"ok": 1, "timeout": 1})


async def test_the_threshold_is_met_in_mid_flight_and_what_is_under_way_ends_as_it_ends(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peers = await linked(dial, gateway, 8)
    run = await begin(api, [peer.agent for peer in peers], concurrency=4, abort_after={"failed": 2})
    first = {peer.agent: await peer.command() for peer in peers[:4]}
    for peer in peers[:2]:
        await answer(peer, first[peer.agent].id, state="error")

    async def aborted() -> bool:
        return bool((await read(api, run))["state"] == "aborted")

    await until(aborted)
    counts = (await read(api, run))["counts"]
    assert counts["failed"] == 2
    assert counts["not_started"] >= 2, "at most two took the places of those that failed"
    waiting = [peer for peer in peers[2:] if peer.agent in first]
    for peer in waiting:
        await answer(peer, first[peer.agent].id)
    for peer in peers[4:]:
        try:
            async with asyncio.timeout(1):
                await answer(peer, (await peer.expect(Cmd)).id)
        except TimeoutError:
            continue  # it was not started
    found = await ended(api, run)
    assert found["state"] == "aborted"
    assert found["counts"] == {"failed": 2, "ok": 6 - counts["not_started"], "not_started": counts["not_started"]}


async def test_targets_with_more_output_than_is_kept_end_well_and_are_told_as_truncated(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """Two that differ in what was dropped are not said to have the same output, or another."""
    gateway = make_gateway(own_valkey.url, "--output-limit", str(16 * len(LARGE)))
    api, peers = api_of(gateway), await linked(dial, gateway, 4)
    run = await begin(api, [peer.agent for peer in peers])
    outputs = [[LARGE] * 24, [LARGE] * 24, [LARGE] * 23 + [b"another end"], [LARGE] * 8]
    commands = await asyncio.gather(*map(answer_within_credit, peers, outputs))
    found = await ended(api, run)
    assert (found["state"], found["counts"]) == ("done", {"ok": 4})
    assert sorted((one["count"], one["digest"] is None) for one in found["outcomes"]) == [(1, False), (3, True)]
    lines = [json.loads(raw) for raw in (await api.http.get(f"/v1/runs/{run}/results")).text.splitlines()]
    assert [line["truncated"] for line in lines[:-1]] == [True] * 4, "each has more than the run's stream shows"
    for command, kept, truncated in zip(commands, (16, 16, 16, 8), (True, True, True, False), strict=True):
        *results, last = await api.lines(command)
        assert (len(results), last["end"]["truncated"]) == (kept, truncated)


async def test_a_target_that_sends_more_than_it_has_credit_for_ends_at_its_deadline(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """Its link is closed for that, so its end never comes."""
    gateway = make_gateway(own_valkey.url)
    api, (honest, greedy) = api_of(gateway), await linked(dial, gateway, 2)
    run = await begin(api, [honest.agent, greedy.agent], deadline=15)
    await answer_within_credit(honest, [LARGE] * 24)
    command = await greedy.command()
    os.kill(own_valkey.pid, signal.SIGSTOP)  # nothing is stored meanwhile, so no credit is granted
    try:
        chunks = [Chunk(id=command.id, n=n, kind="stdout", payload=LARGE) for n in range(5)]
        assert sum(len(chunk.payload) for chunk in chunks) > command.credit
        await greedy.send(Ack(id=command.id), *chunks, End(id=command.id, total=5))
        assert await greedy.close_code() == 4500
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    found = await ended(api, run)
    assert (found["state"], found["counts"]) == ("done", {"ok": 1, "timeout": 1})
