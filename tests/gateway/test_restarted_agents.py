"""The process of an agent ends and another one takes its place: what it was running runs again, continues or is
unknown."""

from __future__ import annotations

import asyncio

from fairlead.wire.messages import Ack, Caps, End, Rx

from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def test_a_restarted_agent_makes_the_outcome_unknown_and_runs_nothing_twice(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    running = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=running))
    await peer.send_output(running, 0, "half")
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


async def test_a_safe_command_is_run_again_by_the_next_boot(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    first = await dial(gateway)
    await first.greet(boot="boot-1")
    command = await api.start(first.agent, retry="safe")
    assert (await first.command()).retry == "safe"
    await first.send(Ack(id=command))
    await first.send_output(command, 0, "half ")
    await first.expect(Rx)
    followed = asyncio.ensure_future(api.lines(command))

    async def following() -> bool:
        return await metric(gateway, "fairlead_followers") == 1

    await until(following)
    second = await dial(gateway, first.agent)
    welcome = await second.greet(boot="boot-2")
    assert welcome.have == {}
    again = await second.command()
    assert (again.id, again.attempt) == (command, 2)
    await second.send(Ack(id=command))
    await second.send_output(command, 0, "whole")
    await second.send(End(id=command, total=1))
    lines = [line for line in await followed if "kind" in line]
    assert [(line["kind"], line["n"], line["text"]) for line in lines] == [
        ("stdout", 0, "half "), ("retry", 1, ""), ("stdout", 0, "whole"),
    ]  # fmt: skip
    end = await api.end(command)
    assert (end["state"], end["total"]) == ("ok", 1)


async def test_a_safe_command_that_took_input_is_not_run_again(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    first = await dial(gateway)
    await first.greet(boot="boot-1")
    command = await api.start(first.agent, retry="safe")
    await first.command()
    await api.http.post(f"/v1/commands/{command}/input?n=0", content=b"hello")
    second = await dial(gateway, first.agent)
    await second.greet(boot="boot-2")
    assert (await api.end(command))["error"]["code"] == "outcome_unknown"


async def test_a_safe_command_that_kills_its_agent_is_given_up(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet(boot="boot-0")
    command = await api.start(peer.agent, retry="safe")
    for attempt in range(1, 6):
        assert (await peer.command()).attempt == attempt
        peer = await dial(gateway, peer.agent)
        await peer.greet(boot=f"boot-{attempt}")
    assert (await api.end(command))["error"]["code"] == "outcome_unknown"


async def test_an_agent_with_a_journal_continues_after_its_restart(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    first = await dial(gateway)
    await first.greet(boot="boot-1", caps=Caps(journal="folder-1"))
    command = await api.start(first.agent)
    await first.command()
    await first.send(Ack(id=command))
    await first.send_output(command, 0, "half ")
    await first.expect(Rx)
    second = await dial(gateway, first.agent)
    welcome = await second.greet(boot="boot-2", caps=Caps(journal="folder-1"))
    assert welcome.have == {command: 1}
    await second.send_output(command, 1, "whole")
    await second.send(End(id=command, total=2))
    assert (await api.end(command))["state"] == "ok"
    assert await api.output(command) == "half whole"


async def test_a_lost_journal_makes_outcomes_unknown(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    first = await dial(gateway)
    await first.greet(boot="boot-1", caps=Caps(journal="folder-1"))
    command = await api.start(first.agent)
    await first.command()
    second = await dial(gateway, first.agent)
    await second.greet(boot="boot-2", caps=Caps(journal="folder-2"))
    assert (await api.end(command))["error"]["code"] == "outcome_unknown"
