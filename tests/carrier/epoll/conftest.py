"""A poller for the tests of one module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from support.carrier.poller_bench import PollerBench


@pytest_asyncio.fixture(loop_scope="module")
async def bench() -> AsyncIterator[PollerBench]:
    bench = PollerBench()
    yield bench
    bench.poller.close()
    for peer in bench.peers:
        peer.close()
    await asyncio.sleep(0)
