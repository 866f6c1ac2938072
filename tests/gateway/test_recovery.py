"""What two nodes and Redis may lose (doorbells, claims, data, time), and how they recover."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from typing import Any, cast

import httpx2
import pytest

from fairlead.bus.inbox import inbox_key
from fairlead.fleet.node_table import AWAY_MS
from fairlead.fleet.schema import agent_key
from fairlead.hub.hub import Hub
from fairlead.hub.session import Session
from fairlead.routing.agents import reconciler
from fairlead.routing.agents.reconciler import Reconciler
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import text
from fairlead.telemetry.metrics import Metrics
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Cancel, Caps, Chunk, Cmd, Drain, End, Hb, Rx

from support.fixtures import RedisOf, UntilAnswered
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent


def value(metrics: str, name: str) -> float:
    """The value of a sample without labels."""
    return float(next(line for line in metrics.splitlines() if line.startswith(f"{name} ")).split()[1])


async def test_a_safe_command_is_run_again_by_the_next_boot(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, until: UntilAnswered
) -> None:
    first = await dial(gateway)
    await first.greet(boot="boot-1")
    command = await api.start(first.agent, retry="safe")
    assert (await first.command()).retry == "safe"
    await first.send(Ack(id=command))
    await first.say(command, 0, "half ")
    await first.expect(Rx)
    followed = asyncio.ensure_future(api.lines(command))

    async def following() -> bool:
        return value((await api.http.get(f"{gateway.admin}/metrics")).text, "fairlead_followers") == 1

    await until(following)
    second = await dial(gateway, first.agent)
    welcome = await second.greet(boot="boot-2")
    assert welcome.have == {}
    again = await second.command()
    assert (again.id, again.attempt) == (command, 2)
    await second.send(Ack(id=command))
    await second.say(command, 0, "whole")
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
    await first.say(command, 0, "half ")
    await first.expect(Rx)
    second = await dial(gateway, first.agent)
    welcome = await second.greet(boot="boot-2", caps=Caps(journal="folder-1"))
    assert welcome.have == {command: 1}
    await second.say(command, 1, "whole")
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


async def test_lost_doorbells_only_cost_time(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """The inbox of the agent's node is missing when it is rung: for a command, for its input, for its cancel."""
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api, store = api_of(other), await redis_of(own_valkey)
    peer = await dial(holder)
    await peer.greet()
    inbox = inbox_key(text(await store.submit("HGET", agent_key(peer.agent), "lease")))

    await store.submit("UNLINK", inbox)
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await store.submit("UNLINK", inbox)
    await api.http.post(f"/v1/commands/{command}/input?n=0", content=b"hello")
    assert (await peer.expect(Chunk)).payload == b"hello"
    await store.submit("UNLINK", inbox)
    await api.http.delete(f"/v1/commands/{command}")
    await peer.expect(Cancel)
    await peer.send(End(id=command, total=0, state="cancelled"))
    assert (await api.end(command))["state"] == "cancelled"


async def test_a_claim_that_redis_lost_is_made_again(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """A killed server comes back without its last second: rows say less than the links."""
    holder = make_gateway(own_valkey.url)
    api, store = api_of(holder), await redis_of(own_valkey)
    stale, gone = await dial(holder), await dial(holder)
    for peer in (stale, gone):
        await peer.greet()
    await store.submit("HSET", agent_key(stale.agent), "lease", "", "gen", 5, "sid", "older")
    await store.submit("DEL", agent_key(gone.agent))
    await store.submit("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def online(agent: str) -> bool:
        answer = await api.http.get(f"/v1/agents/{agent}")
        return bool(answer.status_code == 200 and answer.json()["state"] == "online")

    async with asyncio.timeout(20):
        while not (await online(stale.agent) and await online(gone.agent)):
            await asyncio.sleep(0.05)
    for peer in (stale, gone):
        command = await api.start(peer.agent)
        assert (await peer.expect(Cmd)).id == command


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


async def test_a_command_posted_right_after_a_node_died_waits(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """The agent is away, not offline, although it was claimed long ago and its node has joined again since."""
    holder = make_gateway(own_valkey.url)
    peer = await dial(holder)
    await peer.greet(conn=1)
    holder.signal(signal.SIGKILL)
    holder.wait()
    holder.start()
    api = api_of(holder)
    assert (await api.agent(peer.agent))["state"] == "away"
    command = await api.start(peer.agent)
    again = await dial(holder, peer.agent)
    await again.greet(conn=2)
    assert (await again.command()).id == command


@pytest.mark.timeout(120)
async def test_after_a_long_outage_no_linked_agent_is_reported_offline(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """Each node comes back at its own time. Until then the others know nothing of its agents, and say so."""
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api = api_of(other)
    peer = await dial(holder)
    await peer.greet()
    holder.signal(signal.SIGSTOP)  # it comes back later than the other
    os.kill(own_valkey.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 75
    while True:  # until the other node, too, has been cut off for longer than an agent counts as away
        metrics = (await api.http.get(f"{other.admin}/metrics")).text
        if value(metrics, "fairlead_heartbeat_age_seconds") * 1000 > AWAY_MS + 1_000:
            break
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
    os.kill(own_valkey.pid, signal.SIGCONT)
    while (answer := await api.post({"agent": peer.agent, "method": "work"})).status_code == 503:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    assert answer.status_code == 202, answer.text
    assert answer.json()["presence"] == "away"
    holder.signal(signal.SIGCONT)
    assert (await peer.command()).id == answer.json()["id"]


async def test_links_are_closed_when_redis_stays_unreachable(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:  # fmt: skip
    holder = make_gateway(own_valkey.url, "--bus-grace", "3")
    peer = await dial(holder)
    await peer.greet()
    os.kill(own_valkey.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert await peer.close_code() == CloseCode.BUS_AWAY
    assert time.monotonic() - began >= 2


async def test_data_lost_by_redis_is_reported(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    redis_of: RedisOf,
    until: UntilAnswered,
) -> None:
    holder = make_gateway(own_valkey.url)
    api, store = api_of(holder), await redis_of(own_valkey)
    peer = await dial(holder)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.say(command, 0, "x")
    await peer.expect(Rx)
    assert (await api.post({"agent": "never-seen", "method": "m"})).status_code == 404
    followed = asyncio.ensure_future(api.lines(command))

    async def following() -> bool:
        return value((await api.http.get(f"{holder.admin}/metrics")).text, "fairlead_followers") == 1

    await until(following)
    await store.submit("FLUSHALL")
    answer = await api.post({"agent": peer.agent, "method": "m"})
    assert answer.status_code == 202  # it waits until the agent is known again
    waiting = answer.json()["id"]
    await peer.say(command, 1, "y")
    assert (await peer.expect(Cancel)).id == command
    assert (await followed)[-1]["error"]["code"] == "record_lost"

    async def told() -> bool:
        metrics = (await api.http.get(f"{holder.admin}/metrics")).text
        names = "fairlead_data_lost_total", "fairlead_agents_reclaimed_total", "fairlead_node_fenced_total"
        return [value(metrics, name) for name in names] == [1, 1, 1]

    await until(told)
    assert (await peer.expect(Cmd)).id == waiting
    assert (await api.post({"agent": "never-seen", "method": "m"})).json()["presence"] == "away"
    assert (await api.http.get("/v1/agents/never-seen")).status_code == 503
    gone = await api.http.get(f"/v1/commands/{command}")
    assert gone.status_code == 404
    assert "lost it with its data" in gone.json()["detail"]


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


async def test_the_same_key_posted_twice_at_once_is_one_command_for_both(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, until: UntilAnswered
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    headers = {"idempotency-key": f"key-{peer.agent}", "accept": "application/x-ndjson"}
    body = {"agent": peer.agent, "method": "work"}
    posts = [asyncio.ensure_future(api.http.post("/v1/commands", json=body, headers=headers)) for _ in range(8)]
    command = (await peer.command()).id
    await peer.say(command, 0, "once")
    await peer.send(End(id=command, total=1))
    for post in posts:
        lines = [json.loads(line) for line in (await post).text.splitlines()]
        assert lines[0]["id"] == command
        assert [line["text"] for line in lines if "text" in line] == ["once"]
        assert lines[-1]["end"]["state"] == "ok"

    async def left() -> bool:
        return value((await api.http.get(f"{gateway.admin}/metrics")).text, "fairlead_followers") == 0

    await until(left)


async def test_a_drain_hands_over_an_agent_with_its_running_commands(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    leaving = make_gateway(own_valkey.url, "--drain-timeout", "8", name="node-1")  # too short for its command
    other = make_gateway(own_valkey.url, name="node-2")
    api = api_of(other)
    peer = await dial(leaving)
    await peer.greet(conn=1)
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.say(command, 0, "here ")
    await peer.expect(Rx)
    followed = asyncio.ensure_future(api.lines(command))
    leaving.signal(signal.SIGTERM)
    assert (await peer.expect(Drain)).why == "shutdown"
    assert await peer.close_code() == CloseCode.RESTART
    while (found := await api.agent(peer.agent))["state"] != "away":
        await asyncio.sleep(0.02)
    assert found["why"] == "it moves to another node"
    waiting = await api.start(peer.agent, payload={"second": True})  # posted between the two links: it waits
    again = await dial(other, peer.agent)
    assert (await again.greet(conn=2)).have == {command: 1}
    assert (await again.command()).id == waiting
    await again.say(command, 1, "there")
    await again.send(End(id=command, total=2))
    lines = await followed
    assert "".join(line.get("text", "") for line in lines) == "here there"
    assert lines[-1]["end"]["state"] == "ok"
    assert leaving.wait() == 0


async def test_a_wrong_http_method_is_refused_and_the_right_ones_are_named(api: GatewayApi) -> None:
    answer = await api.http.put("/v1/agents")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert answer.json()["code"] == "method_not_allowed"


async def test_errors_of_agents_may_contain_integers_of_any_size(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway, subprotocol="fairlead.v1.json")
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    error = {"code": "big", "details": {"n": 10**30}}
    await peer.socket.send(json.dumps({"t": 7, "id": command, "total": 0, "state": "error", "error": error}))
    assert (await api.end(command))["error"]["details"] == {"n": str(10**30)}


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


async def test_a_refused_post_does_not_affect_its_repetition(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """Two posts with one key while the agent is unknown, and then a third: at most one command runs."""
    agent = f"late-{secrets.token_hex(4)}"
    headers = {"idempotency-key": f"twins-{agent}"}
    body = {"agent": agent, "method": "work"}
    posts = [asyncio.ensure_future(api.http.post("/v1/commands", json=body, headers=headers)) for _ in range(6)]
    peer = await dial(gateway, agent)
    await peer.greet()
    posts += [asyncio.ensure_future(api.http.post("/v1/commands", json=body, headers=headers)) for _ in range(3)]
    answers = [await post for post in posts]
    accepted = {answer.json()["id"] for answer in answers if answer.status_code == 202}
    assert all(answer.status_code in (202, 404) for answer in answers)
    assert accepted
    ends = [(await api.get(command))["state"] for command in accepted]
    assert sum(state != "failed" for state in ends) == 1  # the others were told 404, and did not run
    cmd = await peer.command()
    assert cmd.id in accepted


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


async def test_a_row_that_cannot_be_read_does_not_keep_other_links_from_being_compared(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, redis_of: RedisOf, until: UntilAnswered
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
    async with httpx2.AsyncClient(trust_env=False) as http:
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
    fleet = FleetStore(unused, unused, unused, unused, unused, unused, unused, unused, unused, unused)
    membership = Membership("node-1")
    compares = Reconciler(fleet, hub, unused, unused, membership, Metrics())
    membership.reconciliation.request()
    loop = asyncio.create_task(compares.run())
    async with asyncio.timeout(20):
        while hub.rounds < 2 or membership.reconciliation.pending:
            await asyncio.sleep(0.01)
    assert "a defect on purpose" in caplog.text
    loop.cancel()
