from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fairlead.store.blocking_reader import ENTRIES, BlockingReader, Entry
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.endpoint import Endpoint
from fairlead.store.pipeliner import Pipeliner

from support.waiting import until

Connect = Callable[[str], Awaitable[Pipeliner]]
Follow = Callable[[str], BlockingReader]


class Received:
    """What the reader delivered: the numbers, and the sizes of the lists that they arrived in."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.sizes: list[int] = []

    def __call__(self, entries: list[Entry]) -> None:
        self.numbers += [int(entry.fields[b"n"]) for entry in entries]
        self.sizes.append(len(entries))


@pytest.fixture
def received() -> Received:
    return Received()


@pytest.fixture
async def follow(received: Received) -> AsyncIterator[Follow]:
    readers: list[BlockingReader] = []

    def start(url: str) -> BlockingReader:
        # Half a second more than the blocking read: a freeze is noticed within the test's patience.
        reader = BlockingReader(Endpoint(url), "stream", received, read_timeout=2.5)
        readers.append(reader)
        reader.start()
        return reader

    yield start
    for reader in readers:
        await reader.aclose()


async def test_entries_arrive_in_order_and_in_bounded_lists(
    pipeliner: Pipeliner, valkey: EmbeddedValkey, received: Received, follow: Follow
) -> None:
    for number in range(600):
        await pipeliner.submit("XADD", "stream", "*", "n", number)
    follow(valkey.url)
    await until(lambda: len(received.numbers) == 600)
    await pipeliner.submit("XADD", "stream", "*", "n", 600)
    await until(lambda: len(received.numbers) == 601)
    assert received.numbers == list(range(601))
    assert max(received.sizes) == ENTRIES


async def test_a_quiet_stream_keeps_its_connection(
    pipeliner: Pipeliner, valkey: EmbeddedValkey, received: Received, follow: Follow
) -> None:
    reader = follow(valkey.url)
    await until(lambda: reader.reads >= 1)  # an empty read came back after the blocking time
    assert reader.last_error is None
    await pipeliner.submit("XADD", "stream", "*", "n", 1)
    await until(lambda: received.numbers == [1])


async def test_the_reader_survives_a_freeze(
    own_valkey: EmbeddedValkey, connect: Connect, received: Received, follow: Follow
) -> None:
    pipeliner, reader = await connect(own_valkey.url), follow(own_valkey.url)
    await pipeliner.submit("XADD", "stream", "*", "n", 1)
    await until(lambda: received.numbers == [1])
    os.kill(own_valkey.pid, signal.SIGSTOP)
    await until(lambda: isinstance(reader.last_error, TimeoutError))
    os.kill(own_valkey.pid, signal.SIGCONT)
    assert await pipeliner.wait_available(5)
    await pipeliner.submit("XADD", "stream", "*", "n", 2)
    await until(lambda: received.numbers == [1, 2])
    assert reader.last_error is None


async def test_the_reader_survives_a_restart(
    own_valkey: EmbeddedValkey, connect: Connect, received: Received, follow: Follow
) -> None:
    pipeliner, reader = await connect(own_valkey.url), follow(own_valkey.url)
    await pipeliner.submit("XADD", "stream", "*", "n", 1)
    await until(lambda: received.numbers == [1])
    os.kill(own_valkey.pid, signal.SIGKILL)
    await until(lambda: reader.last_error is not None)
    await own_valkey.restart()
    await (await connect(own_valkey.url)).submit("XADD", "stream", "*", "n", 2)
    await until(lambda: received.numbers == [1, 2])


async def test_a_recreated_stream_with_older_ids_is_read_from_its_start(
    pipeliner: Pipeliner, valkey: EmbeddedValkey, received: Received, follow: Follow
) -> None:
    reader = follow(valkey.url)
    await pipeliner.submit("XADD", "stream", "5000-0", "n", 1)
    await until(lambda: received.numbers == [1])
    await pipeliner.submit("DEL", "stream")
    await pipeliner.submit("XADD", "stream", "7-0", "n", 2)
    await until(lambda: received.numbers == [1, 2])
    await pipeliner.submit("XADD", "stream", "7-1", "n", 3)
    await until(lambda: received.numbers == [1, 2, 3])
    assert reader.last_id == "7-1"


async def test_a_deleted_stream_that_returns_later_is_followed(
    pipeliner: Pipeliner, valkey: EmbeddedValkey, received: Received, follow: Follow
) -> None:
    reader = follow(valkey.url)
    await pipeliner.submit("XADD", "stream", "5000-0", "n", 1)
    await until(lambda: received.numbers == [1])
    await pipeliner.submit("DEL", "stream")
    await until(lambda: reader.last_id == "0-0")
    await pipeliner.submit("XADD", "stream", "7-0", "n", 2)
    await until(lambda: received.numbers == [1, 2])


async def test_restart_opens_a_new_connection_and_loses_nothing(
    pipeliner: Pipeliner, valkey: EmbeddedValkey, received: Received, follow: Follow
) -> None:
    reader = follow(valkey.url)
    for number in range(200):
        await pipeliner.submit("XADD", "stream", "*", "n", number)
        if number % 20 == 0:
            reader.restart()
    await until(lambda: len(received.numbers) >= 200)
    assert received.numbers == list(range(200))
    assert reader.restarts == 10


async def test_an_error_in_the_handler_does_not_stop_the_reader(
    pipeliner: Pipeliner, valkey: EmbeddedValkey, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def handle(entries: list[Entry]) -> None:
        seen.extend(entry.id for entry in entries)
        raise KeyError("a defect")

    reader = BlockingReader(Endpoint(valkey.url), "stream", handle)
    reader.start()
    for wanted in (1, 2):
        await pipeliner.submit("XADD", "stream", "*", "n", 0)
        await until(lambda wanted=wanted: len(seen) == wanted)  # type: ignore[misc]  # mypy: lambda default
    await reader.aclose()
    assert len(set(seen)) == 2
    assert "the handler of stream failed" in caplog.text


async def test_a_key_of_another_type_is_logged_and_retried(
    pipeliner: Pipeliner,
    valkey: EmbeddedValkey,
    received: Received,
    follow: Follow,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await pipeliner.submit("SET", "stream", "text")
    with caplog.at_level(logging.WARNING):
        follow(valkey.url)
        await until(lambda: "WRONGTYPE" in caplog.text)
    await pipeliner.submit("DEL", "stream")
    await pipeliner.submit("XADD", "stream", "*", "n", 1)
    await until(lambda: received.numbers == [1])


async def test_closing_leaves_no_task(valkey: EmbeddedValkey, received: Received) -> None:
    before = asyncio.all_tasks()
    reader = BlockingReader(Endpoint(valkey.url), "stream", received)
    reader.start()
    reader.restart()
    await reader.aclose()
    assert asyncio.all_tasks() == before
