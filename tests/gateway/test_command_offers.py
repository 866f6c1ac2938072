"""Commands that ride in the doorbell to the node of their agent: delivered once, whatever happens between the step that
accepts them and the agent."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import pytest

from fairlead.bus.doorbell import CommandOffered, Doorbell
from fairlead.fleet import lua, schema
from fairlead.hub.session import Session
from fairlead.hub.session_context import SessionContext
from fairlead.node import Node
from fairlead.settings import Settings
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import text
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import gateway_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Ack, Bye, Cmd, End, Hello, Message, Welcome

from support.fixtures import RedisOf
from support.gateway.lost_doorbells import lost_doorbells
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.hub.linked_session import AGENT, Wire, feed_message
from support.waiting import until

GATEWAY = gateway_codec(SUBPROTOCOL_MSGPACK)
NAME = "offered"


async def row_of(store: Pipeliner, command: str, agent: str) -> str:
    """The row of the command's target, as it is in Redis."""
    return text(await store.submit("HGET", schema.cmd_key(command), f"t:{agent}"))


async def finish(peer: ScriptedAgent, command: str) -> None:
    await peer.send(Ack(id=command), End(id=command, total=0))


class TwoNodes:
    """The holder has the agent, and the caller's API is used."""

    def __init__(self, holder: GatewayProcess, caller: GatewayProcess, api: GatewayApi, store: Pipeliner) -> None:
        self.holder, self.caller, self.api, self.store = holder, caller, api, store


QUICK = 1.0
"""Seconds in which an offer that is good for 2 s surely reaches its agent. On a busy machine it takes another post."""


@pytest.fixture
async def nodes(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, redis_of: RedisOf
) -> TwoNodes:
    holder, caller = make_gateway(own_valkey.url, name="holder"), make_gateway(own_valkey.url, name="caller")
    return TwoNodes(holder, caller, api_of(caller), await redis_of(own_valkey))


@pytest.mark.parametrize(("size", "offered"), [(10, True), (5_000, False)], ids=["small", "large"])
async def test_a_small_command_is_sent_without_asking_redis(
    nodes: TwoNodes, dial: DialAgent, size: int, offered: bool
) -> None:
    peer = await dial(nodes.holder)
    welcome = await peer.greet()
    for _ in range(20):
        began = time.monotonic()
        command = await nodes.api.start(peer.agent, payload={"x": "y" * size}, deadline=50)
        sent = await peer.command()
        if not offered or time.monotonic() - began < QUICK:
            break
        await finish(peer, command)
    assert (sent.id, sent.attempt, sent.method, len(sent.payload)) == (command, 1, "work", size + 8)
    assert 40_000 < sent.deadline <= 50_020, "the nodes' clocks, which follow that of Redis, may be milliseconds apart"
    row = f"sent|{welcome.gen}|0|{0 if offered else 1}|boot-1"
    assert await row_of(nodes.store, command, peer.agent) == row
    await finish(peer, command)
    assert (await nodes.api.end(command))["state"] == "ok"
    assert (await nodes.api.get(command))["targets"][0]["attempt"] == 1


@pytest.mark.parametrize(
    ("more", "attempt"), [({}, 0), ({"on_offline": {"queue": 30}}, 1), ({"payload": {"x": "y" * 5_000}}, 1)],
    ids=["small", "may wait for its agent", "large"],
)  # fmt: skip
async def test_a_command_of_a_run_is_offered_unless_it_may_wait_for_its_agent(
    nodes: TwoNodes, dial: DialAgent, more: dict[str, Any], attempt: int
) -> None:
    peer = await dial(nodes.holder)
    welcome = await peer.greet()
    for _ in range(20):
        began = time.monotonic()
        posted = await nodes.api.http.post("/v1/runs", json={"agents": [peer.agent], "method": "work", **more})
        assert posted.status_code == 202, posted.text
        sent = await peer.command()
        if attempt or time.monotonic() - began < QUICK:
            break
        await finish(peer, sent.id)
    assert (sent.attempt, sent.method, sent.lane) == (1, "work", "bulk")
    assert await row_of(nodes.store, sent.id, peer.agent) == f"sent|{welcome.gen}|0|{attempt}|boot-1"
    await finish(peer, sent.id)
    assert (await nodes.api.end(sent.id))["state"] == "ok"


async def test_the_offer_to_a_node_that_is_gone_is_given_back_by_the_driver_of_the_run(
    nodes: TwoNodes, dial: DialAgent
) -> None:
    """The holder has died and its row says so: the command waits for the agent, and runs where it comes back."""
    peer = await dial(nodes.holder)
    await peer.greet()
    lease = text(await nodes.store.submit("HGET", schema.agent_key(peer.agent), "lease"))
    nodes.holder.signal(signal.SIGKILL)
    await nodes.store.submit("ZREM", schema.NODES, lease)
    async with asyncio.timeout(60):
        while (await nodes.api.agent(peer.agent))["state"] != "away":
            await asyncio.sleep(0.1)
    await nodes.api.http.post("/v1/runs", json={"agents": [peer.agent], "method": "work"})
    again = await dial(nodes.caller, peer.agent)
    await again.greet(boot="boot-2")
    sent = await again.command()
    assert sent.attempt == 1, "it was never sent before, so another process of the agent may run it"
    await finish(again, sent.id)
    assert (await nodes.api.end(sent.id))["state"] == "ok"


async def test_a_holder_killed_before_it_delivers_costs_a_pause(nodes: TwoNodes, dial: DialAgent) -> None:
    """The same process of the agent comes back: the command was not lost, and runs."""
    peer = await dial(nodes.holder)
    await peer.greet()
    nodes.holder.signal(signal.SIGSTOP)
    command = await nodes.api.start(peer.agent)
    assert (await row_of(nodes.store, command, peer.agent)).startswith("sent|")
    nodes.holder.signal(signal.SIGKILL)
    again = await dial(nodes.caller, peer.agent)
    await again.greet(conn=2)
    assert (await again.command()).id == command
    await finish(again, command)
    assert (await nodes.api.end(command))["state"] == "ok"


@pytest.mark.parametrize("retry", ["never", "safe"])
async def test_a_holder_and_an_agent_that_die_together_leave_an_unknown_outcome(
    nodes: TwoNodes, dial: DialAgent, retry: str
) -> None:
    """Nobody is left who knows whether the command was sent, so it runs again only if it may."""
    peer = await dial(nodes.holder)
    await peer.greet()
    nodes.holder.signal(signal.SIGSTOP)
    command = await nodes.api.start(peer.agent, retry=retry)
    nodes.holder.signal(signal.SIGKILL)
    again = await dial(nodes.caller, peer.agent)
    await again.greet(boot="boot-2")
    if retry == "never":
        end = await nodes.api.end(command)
        assert (end["state"], end["error"]["code"]) == ("failed", "outcome_unknown")
        marker = await nodes.api.start(peer.agent, "marker")
        assert (await again.command()).id == marker
    else:
        sent = await again.command()
        assert (sent.id, sent.attempt) == (command, 2)
        await finish(again, command)
        assert (await nodes.api.end(command))["state"] == "ok"


async def test_a_paused_holder_delivers_when_it_wakes(nodes: TwoNodes, dial: DialAgent) -> None:
    """Longer than an offer is valid: then it asks first."""
    peer = await dial(nodes.holder)
    await peer.greet()
    nodes.holder.signal(signal.SIGSTOP)
    command = await nodes.api.start(peer.agent)
    await asyncio.sleep(3)
    nodes.holder.signal(signal.SIGCONT)
    sent = await peer.command()
    assert (sent.id, sent.attempt) == (command, 1)
    await finish(peer, command)
    assert (await nodes.api.end(command))["state"] == "ok"


async def test_a_paused_holder_whose_agent_has_left_delivers_nothing(nodes: TwoNodes, dial: DialAgent) -> None:
    peer = await dial(nodes.holder)
    await peer.greet()
    nodes.holder.signal(signal.SIGSTOP)
    command = await nodes.api.start(peer.agent)
    again = await dial(nodes.caller, peer.agent)
    await again.greet(conn=2)
    assert (await again.command()).id == command
    await asyncio.sleep(3)
    nodes.holder.signal(signal.SIGCONT)
    while not isinstance(message := await peer.receive(), Bye):
        assert not isinstance(message, Cmd)
    assert message.code == CloseCode.SUPERSEDED
    await finish(again, command)
    assert (await nodes.api.end(command))["state"] == "ok"


# -- one node is in this process, so that its doorbells and calls can be held back ------------------


def connected(node: Node, conn: int, boot: str = "b") -> tuple[Session, Wire]:
    """A session of the node whose agent has said hello."""
    session, wire = Session(SessionContext(GATEWAY, node.routing.link_handler, 1 << 18)), Wire()
    session.on_open(wire)
    feed_message(session, wire, Hello(agent=NAME, boot=boot, conn=conn))
    return session, wire


def sent(wire: Wire, kind: type[Message]) -> list[Any]:
    return [message for data in wire.sent if isinstance(message := AGENT.decode(data), kind)]


class HeldDoorbells:
    """The doorbells of a node are kept until they are passed on."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        inbox = node.routing.registration._inbox
        handle = inbox.on_doorbells
        assert handle is not None
        self.pass_on = handle
        self.kept: list[Doorbell] = []
        monkeypatch.setattr(inbox, "on_doorbells", self._keep)

    def _keep(self, doorbells: list[Doorbell]) -> None:
        self.kept += [bell for bell in doorbells if isinstance(bell, CommandOffered)]
        others: list[Doorbell] = [bell for bell in doorbells if not isinstance(bell, CommandOffered)]
        if others:
            self.pass_on(others)


async def test_an_offer_to_a_link_that_has_ended_is_given_back(
    nodes: TwoNodes, own_valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's process ends before the doorbell arrives: its next process gets the command, once, as the first."""
    async with Node(Settings(node="here"), own_valkey.url) as node:
        first, wire = connected(node, 1)
        await until(lambda: sent(wire, Welcome))
        held = HeldDoorbells(node, monkeypatch)
        command = await nodes.api.start(NAME, deadline=40)
        await until(lambda: held.kept)
        first.on_close(wire, 1006, "the process has ended")
        _, next_wire = connected(node, 1, boot="another")
        await until(lambda: sent(next_wire, Welcome))
        assert (await row_of(nodes.store, command, NAME)).startswith("sent|"), "nobody may say that it was not sent"
        held.pass_on(held.kept)
        await until(lambda: sent(next_wire, Cmd))
        (found,) = sent(next_wire, Cmd)
        assert (found.id, found.attempt) == (command, 1)
        assert not sent(wire, Cmd)
        held.pass_on(held.kept)  # a doorbell that comes twice
        marker = await nodes.api.start(NAME, "marker", payload={"x": "y" * 5_000})
        await until(lambda: [found for found in sent(next_wire, Cmd) if found.id == marker])
        assert [found.id for found in sent(next_wire, Cmd)] == [command, marker]


async def test_a_doorbell_that_comes_twice_sends_a_command_once(
    nodes: TwoNodes, own_valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the command has ended meanwhile, and nothing on the node reminds of it."""
    async with Node(Settings(node="here"), own_valkey.url) as node:
        session, wire = connected(node, 1)
        await until(lambda: sent(wire, Welcome))
        held = HeldDoorbells(node, monkeypatch)
        command = await nodes.api.start(NAME)
        await until(lambda: held.kept)
        held.pass_on(held.kept)
        held.pass_on(held.kept)
        assert [found.id for found in sent(wire, Cmd)] == [command], "sent at once"
        feed_message(session, wire, Ack(id=command))
        feed_message(session, wire, End(id=command, total=0))
        assert (await nodes.api.end(command))["state"] == "ok"
        await until(lambda: not session.streams)
        held.pass_on(held.kept)
        await asyncio.sleep(0.1)
        assert len(sent(wire, Cmd)) == 1


async def test_a_command_whose_doorbell_is_lost_is_rung_again(
    nodes: TwoNodes, own_valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Node(Settings(node="here"), own_valkey.url) as node:
        _, wire = connected(node, 1)
        await until(lambda: sent(wire, Welcome))
        held = HeldDoorbells(node, monkeypatch)
        command = await nodes.api.start(NAME, deadline=60)
        await until(lambda: held.kept)
        await until(lambda: sent(wire, Cmd))
        (found,) = sent(wire, Cmd)
        assert (found.id, found.attempt) == (command, 1)
        held.pass_on(held.kept)  # it was only late
        await asyncio.sleep(0.1)
        assert len(sent(wire, Cmd)) == 1


async def test_a_cancel_that_overtakes_the_doorbell_is_not_lost(
    nodes: TwoNodes, own_valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Node(Settings(node="here"), own_valkey.url) as node:
        session, wire = connected(node, 1)
        await until(lambda: sent(wire, Welcome))
        held = HeldDoorbells(node, monkeypatch)
        command = await nodes.api.start(NAME)
        await until(lambda: held.kept)
        assert (await nodes.api.http.delete(f"/v1/commands/{command}")).status_code < 300
        await until(lambda: sent(wire, Cmd))
        held.pass_on(held.kept)
        feed_message(session, wire, Ack(id=command))
        feed_message(session, wire, End(id=command, total=0, state="cancelled"))
        assert (await nodes.api.end(command))["state"] == "cancelled"
        assert len(sent(wire, Cmd)) == 1


async def test_an_offer_that_a_slow_agent_cannot_take_is_given_back_when_it_leaves(
    nodes: TwoNodes, own_valkey: EmbeddedValkey
) -> None:
    """Its link does not read, so the command waits on the node; the next process of the agent gets it."""
    async with Node(Settings(node="here"), own_valkey.url) as node:
        session, wire = connected(node, 1)
        await until(lambda: sent(wire, Welcome))
        wire.congested = True
        command = await nodes.api.start(NAME, deadline=40)
        await until(lambda: command in (session.deliveries or ()))
        session.on_close(wire, 1006, "the process has ended")
        _, next_wire = connected(node, 1, boot="another")
        await until(lambda: sent(next_wire, Cmd))
        assert [(found.id, found.attempt) for found in sent(next_wire, Cmd)] == [(command, 1)]
        assert not sent(wire, Cmd)


async def test_a_command_that_was_sent_to_a_process_that_ends_is_known_to_be_unknown_at_once(
    nodes: TwoNodes, own_valkey: EmbeddedValkey
) -> None:
    """The node that has sent it says so when the link ends, before any sweeper looks."""
    async with Node(Settings(node="here"), own_valkey.url) as node:
        session, wire = connected(node, 1)
        await until(lambda: sent(wire, Welcome))
        command = await nodes.api.start(NAME, deadline=40)
        await until(lambda: sent(wire, Cmd))
        session.on_close(wire, 1006, "the process has ended")

        async def noted() -> bool:
            return (await row_of(nodes.store, command, NAME)).startswith(f"sent|{session.gen}|0|1|")

        await until(noted, 3)
        _, next_wire = connected(node, 1, boot="another")
        end = await nodes.api.end(command)
        assert (end["state"], end["error"]["code"]) == ("failed", "outcome_unknown")
        assert not sent(next_wire, Cmd)


async def test_an_agent_whose_node_is_gone_is_offered_nothing(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, redis_of: RedisOf, dial: DialAgent
) -> None:
    """Its node has begun anew: the command waits, and can be cancelled as one that never ran."""
    holder = make_gateway(own_valkey.url, name="holder")
    peer = await dial(holder)
    await peer.greet()
    holder.signal(signal.SIGKILL)
    holder.wait()
    holder.start()
    api, store = api_of(holder), await redis_of(own_valkey)
    command = await api.start(peer.agent)
    assert (await row_of(store, command, peer.agent)) == "queued|0|0|0|"
    assert (await api.http.delete(f"/v1/commands/{command}")).status_code < 300
    end = await api.end(command)
    assert (end["state"], end["error"]["code"]) == ("cancelled", "cancelled")


async def test_a_command_that_counts_as_sent_and_was_not_is_sent(nodes: TwoNodes, dial: DialAgent) -> None:
    """Its offer is lost, a sweeper finds that nobody knows whether it was sent, and the doorbell of that one is lost,
    too."""
    peer = await dial(nodes.holder)
    await peer.greet()
    async with lost_doorbells(nodes.store, peer.agent):
        for _ in range(20):
            command = await nodes.api.start(peer.agent, deadline=300)
            gen = (await row_of(nodes.store, command, peer.agent)).split("|")[1]
            keys = schema.cmd_key(command), schema.agent_key(peer.agent)
            if await nodes.store.run(lua.END_OFFER, keys, (peer.agent, gen, "1")) is not None:
                break
            await finish(peer, (await peer.command()).id)  # its doorbell came between two removals
        else:
            pytest.fail("each of 20 doorbells came between two removals")
    assert (await peer.command()).id == command
    await finish(peer, command)
    assert (await nodes.api.end(command))["state"] == "ok"
