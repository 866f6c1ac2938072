"""The store by `redis+sentinel://`: with a primary, two replicas and three Sentinels as real processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.errors import BusUnavailable
from fairlead.store.blocking_reader import BlockingReader, Entry
from fairlead.store.pipeliner import SENTINEL_PERIOD, Pipeliner
from fairlead.store.reply import integer

from support.fixtures import Connect
from support.valkey.network import Network
from support.valkey.replication import NAME, Replication
from support.waiting import until


@pytest.fixture
async def replication(tmp_path: Path) -> AsyncIterator[Replication]:
    made = Replication(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        made.stop()


async def _count_up(store: Pipeliner) -> bool:
    try:
        return integer(await store.submit("INCR", "counter")) > 0
    except BusUnavailable:
        return False


async def test_a_killed_primary_is_replaced_by_the_one_that_the_sentinels_promote(
    replication: Replication, connect: Connect
) -> None:
    store = await connect(replication.url)
    received: list[Entry] = []
    reader = BlockingReader(store.endpoint("stream", "reader"), "stream", received.extend)
    reader.start()
    await store.submit("XADD", "stream", "1-1", "d", "before")
    await until(lambda: len(received) == 1)
    before = await replication.primary()
    assert store.address == before.address
    await store.submit("WAIT", 2, 500)

    before.kill()
    await until(lambda: _count_up(store), 60)
    assert store.address != before.address
    assert store.address == (await replication.primary()).address
    await store.submit("XADD", "stream", "2-1", "d", "after")
    await until(lambda: received[-1].fields == {b"d": b"after"}, 30)
    await reader.aclose()


async def test_a_failover_by_hand_moves_the_connection_without_a_lost_answer(
    replication: Replication, connect: Connect
) -> None:
    store = await connect(replication.url)
    before = store.address
    await replication.fail_over()

    async def moved() -> bool:
        return await _count_up(store) and store.address != before

    await until(moved, 60)
    assert store.address == (await replication.primary()).address


async def test_a_primary_that_was_cut_off_from_its_sentinels_is_left(
    replication: Replication, connect: Connect
) -> None:
    """It serves on: nobody has told it that another one was promoted, and only the Sentinels can say so."""
    store = await connect(replication.url)
    before = await replication.primary()
    # Whoever connects now is refused, as if a partition kept the Sentinels and the replicas away; open connections of
    # others than this client are cut.
    own = integer(await store.submit("CLIENT", "ID"))
    await store.submit("CONFIG", "SET", "requirepass", "another")
    for kind in ("normal", "replica"):
        await store.submit("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    assert integer(await store.submit("CLIENT", "ID")) == own
    await until(lambda: store.address != before.address, 60)
    assert await store.wait_available(30)
    await until(lambda: _count_up(store), 30)
    assert store.address == (await replication.primary()).address


async def test_a_sentinel_that_was_cut_off_with_the_old_primary_is_not_believed(
    tmp_path: Path, connect: Connect
) -> None:
    """It names the old primary on, and this client reaches both sides."""
    async with Network() as network:
        replication = Replication(tmp_path, network=network)
        try:
            await replication.start()
            store = await connect(replication.url)
            before, beside = await replication.primary(), replication.sentinels[0]
            others = [*replication.servers, *replication.sentinels]
            for one in (before, beside):
                network.separate(one, [other for other in others if other not in (before, beside)])
            await until(lambda: store.address != before.address and store.available, 90)
            _, named = await beside.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
            assert int(named) == before.public_port
            # Longer than every Sentinel takes to be asked in its turn.
            until_then = asyncio.get_running_loop().time() + SENTINEL_PERIOD * 1.25 * len(replication.sentinels)
            while asyncio.get_running_loop().time() < until_then:
                assert store.address != before.address
                await asyncio.sleep(0.1)
            assert await _count_up(store)
        finally:
            replication.stop()


async def test_a_frozen_primary_that_wakes_up_as_a_replica_gets_no_more_writes(
    replication: Replication, connect: Connect
) -> None:
    store = await connect(replication.url)
    before = await replication.primary()
    before.signal(signal.SIGSTOP)
    await until(lambda: _count_up(store), 60)
    before.signal(signal.SIGCONT)

    async def demoted() -> bool:
        return str((await before.info("replication"))["role"]) == "slave"

    await until(demoted, 60)
    assert store.address != before.address
    assert await _count_up(store)


async def test_a_stopped_sentinel_does_not_matter(replication: Replication, connect: Connect) -> None:
    replication.sentinels[0].signal(signal.SIGSTOP)
    replication.sentinels[1].kill()
    store = await connect(replication.url)
    assert await _count_up(store)


@pytest.mark.parametrize(
    ("part", "replacement", "reason"),
    [
        (f"/{NAME}?", "/nobody?", "no primary of that name serves"),
        ("sentinel_password=", "sentinel_password=x", "refuse the user and password"),
        ("redis+sentinel://:", "redis+sentinel://:x", "refuses the password of the address"),
    ],
)
async def test_a_wrong_url_is_told_with_its_reason(
    replication: Replication, part: str, replacement: str, reason: str
) -> None:
    store = Pipeliner(replication.url.replace(part, replacement))
    store.start()
    try:
        async with asyncio.timeout(30):
            while reason not in store.last_error.message:
                assert not store.available
                await asyncio.sleep(0.05)
        assert "password-of" not in store.last_error.message
    finally:
        await store.aclose()
