"""The drain of nodes that are told to stop: how fast their agents move, in which order, and what it costs the agents.

The nodes are processes with one Valkey. The agents are scripted: they note when they were told to move, leave at their
slot and connect to a node that still serves.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet import schema
from fairlead.fleet.moves.move_bucket import MoveBucket
from fairlead.fleet.moves.move_rate import even_pace
from fairlead.hub.totals import Totals
from fairlead.routing.moves.move_queue import MoveQueue
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer, items, text
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import LEAVE_GRACE, Ack, Bye, Cmd, Drain, End

from support.fixtures import RedisOf
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import TIMEOUT, GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.hub.linked_session import linked

AGENTS = 300
RATE = 40
"""Moves a second of the fleet in these tests: 200 agents take five seconds."""
FLAGS = ("--accept-rate", "2000", "--drain-timeout", "120")


def remaining(metrics: str) -> float:
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("fairlead_drain_remaining "))


class MovingAgent:
    """Keeps linked to one of `nodes`, answers commands, and moves when it is told to."""

    def __init__(self, name: str, nodes: Sequence[GatewayProcess], dial: DialAgent) -> None:
        self.name = name
        self.moved: list[float] = []
        """When it left a node at its slot, by the event loop's clock."""
        self.closes: list[int] = []
        """The codes of links that the gateway closed."""
        self.linked = asyncio.Event()
        self._nodes = nodes
        self._dial = dial
        self._conn = 0

    async def run(self, first: GatewayProcess) -> None:
        node: GatewayProcess | None = first
        while True:
            peer = await self._connect(node)
            try:
                await self._serve(peer)
            except websockets.ConnectionClosed as closed:
                self.closes.append(closed.rcvd.code if closed.rcvd is not None else 1006)
            self.linked.clear()
            node = None

    async def _connect(self, node: GatewayProcess | None) -> ScriptedAgent:
        """As behind a load balancer: a node that refuses is followed by another."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    peer = await self._dial(node or random.choice(self._nodes), self.name)
                    self._conn += 1
                    await peer.greet(conn=self._conn)
                    self.linked.set()
                    return peer
                except (OSError, websockets.WebSocketException):
                    node = None
                    await asyncio.sleep(random.uniform(0.02, 0.2))

    async def _serve(self, peer: ScriptedAgent) -> None:
        while True:
            message = peer.codec.decode(await peer.socket.recv())
            if isinstance(message, Cmd):
                await peer.send(Ack(id=message.id), End(id=message.id, total=0))
            elif isinstance(message, Drain):
                assert message.why == "shutdown"
                await asyncio.sleep(message.slot / 1000)
                self.moved.append(asyncio.get_running_loop().time())
                await peer.send(Bye(code=CloseCode.NORMAL))
                await peer.socket.wait_closed()
                return


class Crowd:
    """All agents of a test."""

    def __init__(self, nodes: Sequence[GatewayProcess], dial: DialAgent, count: int = AGENTS) -> None:
        self.agents = [MovingAgent(f"mover-{i}", nodes, dial) for i in range(count)]
        self._tasks = [asyncio.create_task(agent.run(nodes[i % len(nodes)])) for i, agent in enumerate(self.agents)]

    async def all_linked(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*(agent.linked.wait() for agent in self.agents))

    @property
    def moves(self) -> list[float]:
        """When agents left at their slots, in order."""
        return sorted(at for agent in self.agents for at in agent.moved)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended


def assert_paced(moves: list[float], rate: float) -> None:
    """In no time more moves than the rate allows, and one second's worth: agents of a busy machine are late, and some
    of their moves fall together."""
    for i, early in enumerate(moves):
        for n, late in enumerate(moves[i:]):
            assert n <= rate * (late - early) + rate, f"{n} moves within {late - early:.2f} s"


@contextmanager
def three_nodes(valkey: EmbeddedValkey, make_gateway: MakeGateway, *flags: str) -> Iterator[list[GatewayProcess]]:
    yield [make_gateway(valkey.url, *FLAGS, *flags, name=f"node-{i}") for i in range(3)]


async def stop_two(nodes: list[GatewayProcess]) -> None:
    for node in nodes[:2]:
        node.signal(signal.SIGTERM)
    codes = await asyncio.gather(*(asyncio.to_thread(node.wait, 110) for node in nodes[:2]))
    assert codes == [0, 0]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("operator", [True, False])
async def test_two_nodes_that_stop_at_once_share_one_rate(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf,
    *, operator: bool,
) -> None:  # fmt: skip
    """The rate is the operator's, or the nodes' own; commands to agents that move all end well."""
    with three_nodes(own_valkey, make_gateway, "--drain-rate", str(1000 if operator else RATE)) as nodes:
        store = await redis_of(own_valkey)
        if operator:
            seconds, _ = items(await store.submit("TIME"))
            await MoveBucket(store).set_rate(RATE, RATE, integer(seconds) * 1000 + 120_000)
        crowd = Crowd(nodes, dial)
        await crowd.all_linked()
        api = api_of(nodes[2])
        stopping = asyncio.create_task(stop_two(nodes))
        commands = [await api.start(agent.name) for agent in random.sample(crowd.agents, 40)]
        await stopping
        await crowd.all_linked()
        for command in commands:
            assert (await api.end(command))["state"] == "ok"
        moves = crowd.moves
        assert len(moves) == 2 * AGENTS // 3, "each agent of the two nodes moved once, and no other"
        assert_paced(moves, RATE)
        assert [agent.name for agent in crowd.agents if agent.closes] == [], "nobody was cut off"
        await crowd.leave()


@pytest.mark.timeout(240)
async def test_without_redis_each_node_takes_its_share(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """A third of the rate for each of three nodes. The agents wait for Redis at the node that stays."""
    with three_nodes(own_valkey, make_gateway, "--drain-rate", str(RATE)) as nodes:
        crowd = Crowd(nodes, dial)
        await crowd.all_linked()
        os.kill(own_valkey.pid, signal.SIGSTOP)
        try:
            await stop_two(nodes)
        finally:
            os.kill(own_valkey.pid, signal.SIGCONT)
        await crowd.all_linked()
        moves = crowd.moves
        assert len(moves) == 2 * AGENTS // 3
        assert_paced(moves, RATE * 2 / 3)
        assert [agent.name for agent in crowd.agents if agent.closes] == []
        api = api_of(nodes[2])
        for agent in random.sample(crowd.agents, 20):
            assert (await api.end(await api.start(agent.name)))["state"] == "ok"
        await crowd.leave()


async def test_agents_inside_a_command_go_last(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    leaving, other = (make_gateway(own_valkey.url, "--drain-timeout", "600", name=f"node-{i}") for i in (1, 2))
    api = api_of(other)
    peers = [await dial(leaving) for _ in range(6)]
    for peer in peers:
        await peer.greet()
    busy = peers[0]
    command = await api.start(busy.agent)
    await busy.command()
    await busy.send(Ack(id=command))
    leaving.signal(signal.SIGTERM)
    for peer in peers[1:]:
        await peer.expect(Drain)
        await peer.send(Bye(code=CloseCode.NORMAL))
    async with asyncio.timeout(TIMEOUT):
        while remaining((await api.http.get(f"{leaving.admin}/metrics")).text) > 1:
            await asyncio.sleep(0.05)
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await busy.expect(Drain)
            pytest.fail("an agent was told to move while it ran a command, although there was time")
    await busy.send(End(id=command, total=0))
    await busy.expect(Drain)
    await busy.send(Bye(code=CloseCode.NORMAL))
    assert await asyncio.to_thread(leaving.wait) == 0
    assert (await api.end(command))["state"] == "ok"


async def test_an_agent_that_stays_is_closed_some_time_after_its_slot(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    """It may need that time to open its new link first."""
    leaving, _ = (make_gateway(own_valkey.url, name=f"node-{i}") for i in (1, 2))
    peer = await dial(leaving)
    await peer.greet()
    leaving.signal(signal.SIGTERM)
    slot = (await peer.expect(Drain)).slot / 1000
    signalled = asyncio.get_running_loop().time()
    assert await peer.close_code() == CloseCode.RESTART
    assert asyncio.get_running_loop().time() - signalled > slot + LEAVE_GRACE - 1
    assert await asyncio.to_thread(leaving.wait) == 0


async def test_what_the_budget_does_not_grant_in_time_is_overdrawn_evenly(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, redis_of: RedisOf
) -> None:
    """Of 40 agents, one each ten seconds may move; the drain has eight seconds. Others wait for the debt."""
    flags = ("--drain-rate", "0.1", "--drain-timeout", "8")
    leaving, _ = (make_gateway(own_valkey.url, *flags, name=f"node-{i}") for i in (1, 2))
    peers = [await dial(leaving) for _ in range(40)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    loop = asyncio.get_running_loop()

    async def drain_received(peer: ScriptedAgent) -> float:
        await peer.expect(Drain)
        at = loop.time()
        await peer.send(Bye(code=CloseCode.NORMAL))
        return at

    leaving.signal(signal.SIGTERM)
    times = sorted(await asyncio.gather(*map(drain_received, peers)))
    assert times[-1] - times[1] > 1, "they were told all at once"
    assert await asyncio.to_thread(leaving.wait) == 0
    store = await redis_of(own_valkey)
    (tokens,) = items(await store.submit("HMGET", schema.MOVES, "tokens"))
    assert float(text(tokens)) < 0


async def test_a_drain_for_which_the_budget_is_too_small_does_not_wait_for_its_last_minute(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    """The budget has one move each ten seconds. The last part of the drain begins after a minute."""
    flags = ("--drain-rate", "0.1", "--drain-timeout", "120")
    leaving, _ = (make_gateway(own_valkey.url, *flags, name=f"node-{i}") for i in (1, 2))
    peers = [await dial(leaving) for _ in range(120)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    leaving.signal(signal.SIGTERM)
    drains = [asyncio.create_task(peer.expect(Drain)) for peer in peers]
    try:
        async with asyncio.timeout(50):
            while sum(task.done() for task in drains) < 12:
                await asyncio.wait(drains, timeout=1, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0.1)
        assert sum(task.done() for task in drains) < 60, "they were told all at once"
    finally:
        leaving.signal(signal.SIGKILL)
        await asyncio.gather(*drains, return_exceptions=True)


@given(
    st.floats(0.01, 600), st.integers(0, 20_000), st.floats(0, 1000),
    st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 50)), max_size=60),
)  # fmt: skip
def test_an_even_pace_leaves_nothing_for_the_end_and_asks_for_no_more_than_is_accepted(
    seconds: float, waiting: int, accepted: float, steps: list[tuple[float, int]]
) -> None:
    left, queue = seconds, float(waiting)
    for elapsed, granted in steps:
        pace = even_pace(int(queue), left, accepted)
        assert 0 <= pace <= accepted
        assert left <= 0 or pace * left <= queue + 1e-6
        queue = max(0.0, queue - pace * elapsed - granted)
        left -= elapsed
    if left > 0 and accepted * left >= queue:
        assert even_pace(int(queue), left, accepted) * left >= int(queue) * (1 - 1e-9)


@given(st.lists(st.sampled_from(("idle", "busy", "closed")), max_size=12), st.integers(0, 13), st.booleans())
def test_the_queue_gives_idle_links_first(kinds: list[str], count: int, busy_too: bool) -> None:
    totals = Totals()
    made = [(linked(totals, f"{kind}-{i}"), kind) for i, kind in enumerate(kinds)]
    for (session, wire), kind in made:
        if kind == "busy":
            session.open_stream("command")
        elif kind == "closed":
            session.on_close(wire, 1006, "")
    queue = MoveQueue(session for (session, _), _ in made)
    taken = [session.agent.partition("-")[0] for session in queue.take(count, busy_too=busy_too)]
    idle, busy = kinds.count("idle"), kinds.count("busy") if busy_too else 0
    expected = ["idle"] * idle + ["busy"] * busy
    assert taken == expected[:count]
    rest = [session.agent.partition("-")[0] for session in queue.take(100, busy_too=True)]
    assert len(taken) + len(rest) == kinds.count("idle") + kinds.count("busy")


def test_links_that_are_put_back_are_the_first_again() -> None:
    totals = Totals()
    sessions = [linked(totals, f"agent-{i}")[0] for i in range(4)]
    queue = MoveQueue(sessions)
    taken = queue.take(3)
    queue.put_back(taken[1:])
    assert queue.take(4) == sessions[1:]
