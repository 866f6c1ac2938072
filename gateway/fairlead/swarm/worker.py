"""The life of one process of a swarm: `python -m fairlead.swarm.worker`, started by `coordinator` alone.

Its standard input has the plan on the first line, then one order a line: `storm`, `stop`. What it counts goes to
standard output as JSON, twice a second. When the input ends, the conductor is gone, and so is this process: a load
generator must not go on by itself.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from contextlib import suppress

import msgspec

from fairlead.swarm.agent_pool import AgentPool
from fairlead.swarm.options import WorkerOptions, raise_open_files

REPORT = 0.5
"""Seconds between two reports."""
GC_THRESHOLD = 100_000
"""New containers between two young collections: dialling makes no cycles, so there is little to find."""


async def live() -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    order = msgspec.json.decode(await orders.readline(), type=WorkerOptions)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 1000)
    pool = AgentPool(order.options, order.number, order.began)
    running = asyncio.create_task(pool.run())
    reporting = asyncio.create_task(_report(pool))
    try:
        while (word := await _heard(orders, running)) and word != "stop":
            pool.storm()
    finally:
        reporting.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    _say(pool, last=True)
    await pool.leave()


async def _heard(orders: asyncio.StreamReader, running: asyncio.Task[None]) -> str:
    """The next order, empty when there will be none. A crew that fails ends the wait."""
    line = asyncio.create_task(orders.readline())
    await asyncio.wait({line, running}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        line.cancel()
        running.result()
    return (await line).decode().strip()


async def _report(pool: AgentPool) -> None:
    while True:
        await asyncio.sleep(REPORT)
        _say(pool, last=False)


def _say(pool: AgentPool, *, last: bool) -> None:
    counters = pool.count()
    if last:
        pool.conclude()
    line = msgspec.json.encode({"last": last, "tally": counters})
    with suppress(BrokenPipeError):  # its reader is gone, and the end of our input says the same
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the conductor's; it tells us
    raise_open_files()
    try:
        import uvloop
    except ImportError:  # the base install: half as fast, otherwise the same
        asyncio.run(live())
    else:
        uvloop.run(live())


if __name__ == "__main__":
    main()
