"""Doorbells between workers of one supervisor: over sockets when they can, through Redis when they cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fairlead.bus.doorbell import CommandQueued, Doorbell, ResultsAdded
from fairlead.bus.inbox import Inbox, inbox_key
from fairlead.bus.sibling_doorbells import SiblingSockets
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items

from support.waiting import until

Connect = Callable[[str], Awaitable[Pipeliner]]
WORKERS = ("node-0", "node-1")


class Siblings:
    """Two workers and a node that is not theirs, with what each has heard."""

    def __init__(self, valkey: EmbeddedValkey, connect: Connect) -> None:
        self._valkey = valkey
        self._connect = connect
        self.sockets = SiblingSockets(WORKERS)
        self.heard: dict[str, list[Doorbell]] = {}
        self.inboxes: dict[str, Inbox] = {}
        self.store: Pipeliner

    async def start(self, node: str, epoch: str = "e1") -> Inbox:
        self.store = await self._connect(self._valkey.url)
        heard = self.heard[node] = []
        siblings = self.sockets.of(node) if node in WORKERS else None
        inbox = self.inboxes[node] = Inbox(self.store, node, epoch, heard.extend, siblings)
        await inbox.start()
        return inbox

    async def entries(self, inbox: Inbox) -> int:
        """That were ever added to its stream, which is trimmed meanwhile."""
        facts = items(await self.store.submit("XINFO", "STREAM", inbox.key))
        return integer(facts[facts.index(b"entries-added") + 1])


@pytest.fixture
async def siblings(valkey: EmbeddedValkey, connect: Connect) -> AsyncIterator[Siblings]:
    made = Siblings(valkey, connect)
    yield made
    for inbox in made.inboxes.values():
        await inbox.aclose()
    made.sockets.close()


async def test_siblings_ring_one_another_and_redis_sees_nothing_of_it(siblings: Siblings) -> None:
    one, two = await siblings.start("node-0"), await siblings.start("node-1")
    before = await siblings.entries(two)
    bells = [CommandQueued("agent", f"command-{number}") for number in range(2_500)]
    one.ring(two.address, bells)
    one.ring(two.address, [ResultsAdded("command")])
    await until(lambda: siblings.heard["node-1"] == [*bells, ResultsAdded("command")])
    assert await siblings.entries(two) == before
    assert (one.sent, two.received, one.lost) == (2_501, 2_501, 0)
    two.ring(one.address, [ResultsAdded("back")])
    await until(lambda: siblings.heard["node-0"] == [ResultsAdded("back")])


async def test_other_nodes_are_rung_through_redis(siblings: Siblings) -> None:
    one, other = await siblings.start("node-0"), await siblings.start("elsewhere")
    before = await siblings.entries(other)
    one.ring(other.address, [ResultsAdded("there")])
    other.ring(one.address, [ResultsAdded("here")])
    await until(lambda: siblings.heard["elsewhere"] == [ResultsAdded("there")])
    await until(lambda: siblings.heard["node-0"] == [ResultsAdded("here")])
    assert await siblings.entries(other) == before + 1


async def test_a_sibling_that_does_not_read_is_rung_through_redis(siblings: Siblings) -> None:
    """Its event loop is held up or its process is stopped; what it could not be sent waits in its stream."""
    one, two = await siblings.start("node-0"), await siblings.start("node-1")
    before = await siblings.entries(two)
    bells = [[ResultsAdded(f"{turn:0100}-{number}") for number in range(500)] for turn in range(20)]
    for part in bells:  # some 50 KB each, in one turn of the event loop: nobody can read in between
        one.ring(two.address, part)
        one._send()
    await until(lambda: len(siblings.heard["node-1"]) == 10_000)
    assert set(siblings.heard["node-1"]) == {bell for part in bells for bell in part}
    assert before < await siblings.entries(two) < before + 20, "some went one way, and some the other"


async def test_a_worker_that_was_restarted_hears_nothing_that_was_meant_for_the_last_one(siblings: Siblings) -> None:
    one = await siblings.start("node-0")
    one.ring("node-1#e1", [ResultsAdded("late")])
    await asyncio.sleep(0)  # the doorbells of a turn are sent after it
    again = await siblings.start("node-1", "e2")
    one.ring(again.address, [ResultsAdded("now")])
    await until(lambda: siblings.heard["node-1"] == [ResultsAdded("now")])


async def test_a_closed_inbox_hears_nothing(siblings: Siblings) -> None:
    one, two = await siblings.start("node-0"), await siblings.start("node-1")
    await two.aclose()
    one.ring(two.address, [ResultsAdded("late")])
    one.ring(one.address, [ResultsAdded("own")])
    await until(lambda: siblings.heard["node-0"] == [ResultsAdded("own")])
    assert siblings.heard["node-1"] == []
    assert inbox_key(two.address) == two.key
