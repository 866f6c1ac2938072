from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from fairlead.bus.doorbell import (
    MAX_PER_ENTRY,
    CommandQueued,
    Doorbell,
    InputAdded,
    LinkSuperseded,
    ResultsAdded,
    encode,
)
from fairlead.bus.inbox import Inbox, inbox_key
from fairlead.bus.inbox_stream import TTL
from fairlead.errors import BusUnavailable
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.endpoint import Endpoint
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer

from support.waiting import until

Connect = Callable[[str], Awaitable[Pipeliner]]


@dataclass
class InboxNode:
    """An inbox with connections of its own, as a node has, and the doorbells that it received."""

    pipeliner: Pipeliner
    received: list[Doorbell] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    inbox: Inbox = field(init=False)

    def hear(self, doorbells: list[Doorbell]) -> None:
        self.received += doorbells
        self.calls.append(len(doorbells))


Join = Callable[..., Awaitable[InboxNode]]


@pytest.fixture
async def join(connect: Connect) -> AsyncIterator[Join]:
    nodes: list[InboxNode] = []

    async def make(name: str, url: str, reader_url: str = "") -> InboxNode:
        store = SplitStore(url, reader_url) if reader_url else await connect(url)
        if reader_url:
            store.start()
            assert await store.wait_available(20), store.last_error
        node = InboxNode(store)
        node.inbox = Inbox(store, name, "e1", node.hear)
        nodes.append(node)
        await node.inbox.start()
        return node

    yield make
    for node in nodes:
        await node.inbox.aclose()
        if isinstance(node.pipeliner, SplitStore):
            await node.pipeliner.aclose()


class SplitStore(Pipeliner):
    """A store whose blocking reads go to Redis by another URL."""

    def __init__(self, url: str, reader_url: str) -> None:
        super().__init__(url)
        self._reader_url = reader_url

    def endpoint(self, key: str, client_name: str) -> Endpoint:
        return Endpoint(self._reader_url, client_name)


class Pipe:
    """A TCP forwarder that can go silent: it keeps connections open and drops what they carry.

    A NAT table or a firewall does the same when it forgets a connection.
    """

    def __init__(self, socket_path: str) -> None:
        self._target = socket_path
        self._open: set[asyncio.StreamWriter] = set()
        self._dropping: set[asyncio.StreamWriter] = set()
        self.drops_new = False
        self.accepted = 0
        self.url = ""

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def drop_commands(self) -> None:
        self._dropping |= self._open

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        onward, backward = await asyncio.open_unix_connection(self._target)
        pair = {writer, backward}
        self._open |= pair
        if self.drops_new:
            self._dropping |= pair
        try:
            await asyncio.gather(self._pump(reader, backward), self._pump(onward, writer))
        except OSError:
            pass
        finally:
            self._open -= pair
            for end in pair:
                end.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if sink not in self._dropping:
                sink.write(data)
                await sink.drain()
        sink.close()


@pytest.fixture
async def pipe(valkey: EmbeddedValkey) -> AsyncIterator[Pipe]:
    made = Pipe(valkey.socket_path)
    server = await made.start()
    yield made
    server.close()


async def test_doorbells_reach_the_other_node_only(valkey: EmbeddedValkey, join: Join) -> None:
    one, two = await join("one", valkey.url), await join("two", valkey.url)
    rung: list[Doorbell] = [
        CommandQueued("agent", "command"),
        ResultsAdded("command"),
        LinkSuperseded("agent", 7, 4001),
    ]
    one.inbox.ring("two#e1", rung)
    await until(lambda: two.received == rung)
    two.inbox.ring(one.inbox.address, rung[:1])
    await until(lambda: one.received == rung[:1])
    assert two.received == rung
    assert one.inbox.lost == two.inbox.lost == 0


async def test_doorbells_of_one_loop_iteration_share_bounded_entries(valkey: EmbeddedValkey, join: Join) -> None:
    one, two = await join("one", valkey.url), await join("two", valkey.url)
    rung: list[Doorbell] = [ResultsAdded(str(number)) for number in range(2 * MAX_PER_ENTRY + 500)]
    for doorbell in rung:
        one.inbox.ring("two#e1", [doorbell])
    await until(lambda: len(two.received) == len(rung))
    assert two.received == rung
    assert two.calls == [MAX_PER_ENTRY, MAX_PER_ENTRY, 500]
    assert (one.inbox.sent, two.inbox.received) == (len(rung), len(rung))


async def test_a_doorbell_to_the_own_node_needs_no_redis(own_valkey: EmbeddedValkey, join: Join) -> None:
    node = await join("one", own_valkey.url)
    os.kill(own_valkey.pid, signal.SIGKILL)
    await until(lambda: not own_valkey.running)
    node.inbox.ring("one#e1", [ResultsAdded("command")])
    assert node.received == []  # never within the call: the caller may hold half-changed state
    await asyncio.sleep(0)
    assert node.received == [ResultsAdded("command")]


async def test_a_doorbell_to_a_dead_node_creates_no_key(valkey: EmbeddedValkey, join: Join) -> None:
    node = await join("one", valkey.url)
    node.inbox.ring("two#e1", [ResultsAdded("command"), ResultsAdded("other")])
    await until(lambda: node.inbox.lost == 2)
    assert await node.pipeliner.submit("KEYS", "*") == [node.inbox.key.encode()]


async def test_ringing_without_redis_counts_as_lost(own_valkey: EmbeddedValkey, join: Join) -> None:
    node = await join("one", own_valkey.url)
    os.kill(own_valkey.pid, signal.SIGKILL)
    node.inbox.ring("two#e1", [ResultsAdded("command")])
    await until(lambda: node.inbox.lost == 1)


async def test_whoever_waits_learns_whether_a_doorbell_has_reached_an_inbox(
    own_valkey: EmbeddedValkey, join: Join
) -> None:
    one, two = await join("one", own_valkey.url), await join("two", own_valkey.url)
    rung = InputAdded("agent", "command")
    assert await one.inbox.ring_and_wait("two#e1", rung)
    await until(lambda: two.received == [rung])
    assert await one.inbox.ring_and_wait("one#e1", rung)
    await until(lambda: one.received == [rung])
    assert not await one.inbox.ring_and_wait("three#e1", rung)
    os.kill(own_valkey.pid, signal.SIGKILL)
    assert not await one.inbox.ring_and_wait("two#e1", rung)
    assert one.inbox.lost == 2


async def test_the_inbox_ends_with_its_node(valkey: EmbeddedValkey, join: Join) -> None:
    node = await join("one", valkey.url)
    assert node.inbox.key == inbox_key("one#e1") == "fl1:inbox:{one#e1}"
    assert 0 < integer(await node.pipeliner.submit("TTL", node.inbox.key)) <= TTL
    await node.pipeliner.submit("EXPIRE", node.inbox.key, 10)
    await node.inbox.refresh()
    assert integer(await node.pipeliner.submit("TTL", node.inbox.key)) > 10
    await node.inbox.aclose()
    assert await node.pipeliner.submit("EXISTS", node.inbox.key) == 0


async def test_read_entries_are_trimmed_with_the_heartbeat(valkey: EmbeddedValkey, join: Join) -> None:
    one, two = await join("one", valkey.url), await join("two", valkey.url)
    rung = [ResultsAdded(f"command-{number:040}") for number in range(50)]
    for turn in range(20):
        one.inbox.ring("two#e1", rung)
        await until(lambda turn=turn: len(two.received) == (turn + 1) * 50)  # type: ignore[misc]
    assert integer(await two.pipeliner.submit("XLEN", two.inbox.key)) == 21
    await two.inbox.refresh()
    assert integer(await two.pipeliner.submit("XLEN", two.inbox.key)) < 5


async def test_many_read_entries_are_trimmed_before_the_heartbeat(valkey: EmbeddedValkey, join: Join) -> None:
    one, two = await join("one", valkey.url), await join("two", valkey.url)
    rung = [ResultsAdded(f"command-{number:040}") for number in range(MAX_PER_ENTRY)]
    for turn in range(20):
        one.inbox.ring("two#e1", rung)
        await until(lambda turn=turn: len(two.received) == (turn + 1) * MAX_PER_ENTRY)  # type: ignore[misc]
    one.inbox.ring("two#e1", [ResultsAdded("last")])
    await until(lambda: two.received[-1] == ResultsAdded("last"))
    assert len(two.received) == 20 * MAX_PER_ENTRY + 1
    assert integer(await two.pipeliner.submit("XLEN", two.inbox.key)) < 8


async def test_a_lost_inbox_is_created_again_with_the_heartbeat(valkey: EmbeddedValkey, join: Join) -> None:
    one, two = await join("one", valkey.url), await join("two", valkey.url)
    await one.pipeliner.submit("FLUSHALL")
    await two.inbox.refresh()
    one.inbox.ring("two#e1", [ResultsAdded("command")])
    await until(lambda: two.received == [ResultsAdded("command")])
    assert 0 < integer(await two.pipeliner.submit("TTL", two.inbox.key)) <= TTL


async def test_a_new_data_epoch_starts_a_new_inbox(valkey: EmbeddedValkey, join: Join) -> None:
    one, two = await join("one", valkey.url), await join("two", valkey.url)
    await two.inbox.rename("e2")
    assert two.inbox.address == "two#e2"
    one.inbox.ring("two#e1", [ResultsAdded("late")])
    await until(lambda: one.inbox.lost == 1)
    one.inbox.ring("two#e2", [ResultsAdded("command")])
    await until(lambda: two.received == [ResultsAdded("command")])
    assert await two.inbox.check()


async def test_foreign_entries_are_skipped(valkey: EmbeddedValkey, join: Join) -> None:
    node = await join("one", valkey.url)
    for fields in (["x", "y"], ["d", b"\xc1 nonsense"], ["d", encode([ResultsAdded("command")])]):
        await node.pipeliner.submit("XADD", node.inbox.key, "*", *fields)
    await until(lambda: node.received == [ResultsAdded("command")])


async def test_a_canary_comes_back_and_is_kept_from_the_handler(valkey: EmbeddedValkey, join: Join) -> None:
    node = await join("one", valkey.url)
    assert all(await asyncio.gather(node.inbox.check(), node.inbox.check()))
    await node.pipeliner.submit("DEL", node.inbox.key)
    assert await node.inbox.check()  # created again for the test, and with an expiry
    assert integer(await node.pipeliner.submit("TTL", node.inbox.key)) > 0
    assert node.received == []


async def test_a_late_canary_restarts_a_deaf_reader(valkey: EmbeddedValkey, join: Join, pipe: Pipe) -> None:
    node = await join("one", valkey.url, pipe.url)
    assert await node.inbox.check()
    pipe.drop_commands()
    assert not await node.inbox.check(deadline=0.3)
    assert not node.inbox.stalled  # once may be a coincidence
    assert await node.inbox.check()
    assert pipe.accepted == 2
    other = await join("two", valkey.url)
    other.inbox.ring("one#e1", [ResultsAdded("command")])
    await until(lambda: node.received == [ResultsAdded("command")])


async def test_the_node_is_deaf_after_two_late_canaries_until_one_returns(
    valkey: EmbeddedValkey, join: Join, pipe: Pipe
) -> None:
    node = await join("one", valkey.url, pipe.url)
    pipe.drop_commands()
    pipe.drops_new = True
    assert not await node.inbox.check(deadline=0.3)
    assert not await node.inbox.check(deadline=0.3)
    assert node.inbox.stalled
    pipe.drops_new = False
    assert await node.inbox.check()
    assert not node.inbox.stalled


async def test_the_node_is_not_deaf_while_redis_is_unreachable(own_valkey: EmbeddedValkey, join: Join) -> None:
    node = await join("one", own_valkey.url)
    os.kill(own_valkey.pid, signal.SIGKILL)
    await until(lambda: not own_valkey.running)
    for _ in range(3):
        assert not await node.inbox.check(deadline=0.3)
    assert not node.inbox.stalled
    with pytest.raises(BusUnavailable):
        await node.inbox.refresh()
    await own_valkey.restart()
    assert await node.pipeliner.wait_available(5)
    await node.inbox.refresh()
    assert await node.inbox.check()


async def test_an_error_in_the_handler_does_not_stop_the_inbox(
    valkey: EmbeddedValkey, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Doorbell] = []

    def handle(doorbells: list[Doorbell]) -> None:
        seen.extend(doorbells)
        raise KeyError("a defect")

    inbox = Inbox(await connect(valkey.url), "one", "e1", handle)
    await inbox.start()
    inbox.ring("one#e1", [ResultsAdded("first")])
    await until(lambda: len(seen) == 1)
    assert await inbox.check()
    await inbox.aclose()
    assert "handling doorbells failed" in caplog.text
