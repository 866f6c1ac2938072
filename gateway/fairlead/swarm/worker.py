"""One process of a swarm: `python -m fairlead.swarm.worker`, started by `coordinator` alone.

Its standard input has its options on the first line, then one instruction a line: `storm`, `stop`. Its counters go to
standard output as JSON, twice a second. When its input ends, the coordinator is gone, and the worker exits, because a
load generator must not continue unattended.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from contextlib import suppress

import msgspec

from fairlead.swarm.agents.agent_pool import AgentPool
from fairlead.swarm.counters import WorkerReport
from fairlead.swarm.options import WorkerOptions
from fairlead.swarm.system import raise_open_files

REPORT_INTERVAL = 0.5
"""Seconds between two reports."""
GC_THRESHOLD = 100_000
"""The garbage collector's threshold for the youngest generation: connecting creates no cycles."""


async def work() -> None:
    loop = asyncio.get_running_loop()
    instructions = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(instructions), sys.stdin)
    options = msgspec.json.decode(await instructions.readline(), type=WorkerOptions)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 1000)
    pool = AgentPool(options.options, options.number, options.began)
    running = asyncio.create_task(pool.run())
    reporting = asyncio.create_task(_report(pool))
    try:
        while (word := await _next_instruction(instructions, running)) and word != "stop":
            pool.storm()
    finally:
        reporting.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    _print_counters(pool, last=True)
    await pool.leave()


async def _next_instruction(instructions: asyncio.StreamReader, running: asyncio.Task[None]) -> str:
    """The next instruction; empty if there will be none. The wait also ends if the pool fails."""
    line = asyncio.create_task(instructions.readline())
    await asyncio.wait({line, running}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        line.cancel()
        running.result()
    return (await line).decode().strip()


async def _report(pool: AgentPool) -> None:
    while True:
        await asyncio.sleep(REPORT_INTERVAL)
        _print_counters(pool, last=False)


def _print_counters(pool: AgentPool, *, last: bool) -> None:
    counters = pool.count()
    if last:
        pool.conclude()
    line = msgspec.json.encode(WorkerReport(counters, last))
    with suppress(BrokenPipeError):  # the reader is gone, and the end of the input says the same
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which stops the workers
    raise_open_files()
    try:
        import uvloop
    except ImportError:  # the base install has no uvloop: half as fast, otherwise the same
        asyncio.run(work())
    else:
        uvloop.run(work())


if __name__ == "__main__":
    main()
