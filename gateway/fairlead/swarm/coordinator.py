"""Starts the workers of a swarm, instructs them, and adds up their counters.

Called by the command line. Workers are processes and not threads, because one interpreter uses one core and has one
limit of open files. First all agents connect at the given rate, then they are held, then they leave; the outcome is a
`SwarmResult`. The agents of a worker that dies count as lost.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fairlead.errors import ConnectionRefused, FairleadError
from fairlead.swarm.agents.agent_pool import MISCONFIGURED
from fairlead.swarm.counters import Counters, WorkerReport
from fairlead.swarm.options import SwarmOptions, WorkerOptions
from fairlead.swarm.worker import REPORT_INTERVAL

START_TIMEOUT = 30.0
"""Seconds for a worker to start: an interpreter takes a second, on a busy machine several."""
NO_WELCOME = 10.0
"""Seconds without a single welcome after which the gateway counts as unreachable."""
MISCONFIGURED_TIMEOUT = 2.0
"""Seconds after which to give up if every refusal says that something, such as the token, has to be corrected."""
RAMP_SPARE = 60.0
"""Seconds in addition to four times what the rate requires, for refusals, their delays, and a slower gateway."""
STOP_TIMEOUT = 40.0
"""Seconds for all agents to leave before the workers get SIGKILL."""
LINE_LIMIT = 1 << 20
"""The maximum length of one report in bytes: some hundred buckets and counters take less than 100 KiB."""


@dataclass(frozen=True, slots=True)
class SwarmResult:
    options: SwarmOptions
    counters: Counters
    complete: bool
    """Whether all agents were welcomed."""
    held: float
    """Seconds for which the links were held after all were welcomed."""
    died: int
    """Workers that ended early."""

    @property
    def ok(self) -> bool:
        t = self.counters
        return self.complete and not (
            t.lost or t.missing or t.rejected or t.half_open_unnoticed or t.violations or self.died
        )


Progress = Callable[[str, Counters, float], None]
"""Called twice a second with the phase, the sum of all counters, and seconds since the start."""


class Coordinator:
    def __init__(
        self, options: SwarmOptions, *, duration: float | None, storm_every: float, progress: Progress
    ) -> None:
        """`duration` in seconds; None: until a signal."""
        self._options = options
        self._duration = duration
        self._storm_every = storm_every
        self._progress = progress
        self._processes: list[asyncio.subprocess.Process] = []
        self._counters: list[Counters] = [Counters() for _ in range(options.processes)]
        self._last: set[int] = set()
        self._readers: list[asyncio.Task[None]] = []
        self._stopped = asyncio.Event()
        self._died = 0
        self._began = 0.0

    async def run(self) -> SwarmResult:
        """Run until the duration or a signal ends it. Raises ConnectionRefused when no agent can connect."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopped.set)
        try:
            await self._start()
            complete = await self._ramp()
            held = time.monotonic()
            await self._hold()
            held = time.monotonic() - held
            await self._stop()
        finally:
            await self._kill()
        return SwarmResult(self._options, self._sum(), complete, held, self._died)

    def _sum(self) -> Counters:
        total = Counters()
        for counters in self._counters:
            total.merge(counters)
        return total

    async def _start(self) -> None:
        self._began = time.monotonic()
        for number in range(self._options.processes):
            process = await asyncio.create_subprocess_exec(
                # -P: a folder in the working directory must not replace a module of the standard library.
                sys.executable, "-P", "-m", "fairlead.swarm.worker",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_LIMIT, start_new_session=True,
            )  # fmt: skip
            self._processes.append(process)
            self._instruct(number, msgspec.json.encode(WorkerOptions(number, self._options, self._began)))
            self._readers.append(asyncio.create_task(self._read(number, process)))

    def _instruct(self, number: int, line: bytes) -> None:
        stdin = self._processes[number].stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(line + b"\n")

    async def _read(self, number: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            report = msgspec.json.decode(line, type=WorkerReport)
            self._counters[number] = report.counters
            if report.last:
                self._last.add(number)
        if number not in self._last:
            self._died += 1
            counters = self._counters[number]
            counters.lost, counters.linked = counters.lost + counters.linked, 0

    async def _pass(self, most: float, phase: str) -> bool:
        """Wait for one report interval, or `most` seconds; False when it is time to end."""
        try:
            async with asyncio.timeout(min(REPORT_INTERVAL, most)):
                await self._stopped.wait()
        except TimeoutError:
            pass
        self._progress(phase, self._sum(), time.monotonic() - self._began)
        return not self._stopped.is_set() and self._died < len(self._processes)

    async def _ramp(self) -> bool:
        options, started = self._options, time.monotonic()
        deadline = options.agents / options.rate * 4 + RAMP_SPARE
        while await self._pass(REPORT_INTERVAL, "connecting"):
            passed, counters = time.monotonic() - started, self._sum()
            if counters.agents_welcomed >= options.agents:
                return True
            misconfigured = bool(counters.refused) and counters.refused.keys() <= set(MISCONFIGURED)
            if counters.agents_welcomed == 0 and passed > (MISCONFIGURED_TIMEOUT if misconfigured else NO_WELCOME):
                if counters.attempts == 0 and passed < START_TIMEOUT:
                    continue
                raise ConnectionRefused(
                    f"no agent could connect to {options.url} within {passed:.0f} s: {counters.last_refusal}"
                )
            if passed > deadline:
                break
        if self._died == len(self._processes):
            raise FairleadError("all workers of the swarm have died: see their messages above")
        return self._sum().agents_welcomed >= options.agents

    async def _hold(self) -> None:
        end = time.monotonic() + (self._duration if self._duration is not None else float("inf"))
        storms = "storm" in self._options.mix
        storm = time.monotonic()
        while not self._stopped.is_set() and (now := time.monotonic()) < end:
            if storms and now >= storm:
                storm = now + self._storm_every * random.uniform(0.8, 1.2)
                for number in range(len(self._processes)):
                    self._instruct(number, b"storm")
            if not await self._pass(end - now, "holding"):
                return

    async def _stop(self) -> None:
        for number in range(len(self._processes)):
            self._instruct(number, b"stop")
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await asyncio.gather(*self._readers)
        except TimeoutError:
            self._progress("killing workers that do not end", self._sum(), time.monotonic() - self._began)

    async def _kill(self) -> None:
        for number, process in enumerate(self._processes):
            if process.stdin is not None:
                process.stdin.close()
            if process.returncode is None and number not in self._last:
                process.kill()
        for listener in self._readers:
            listener.cancel()
        for process in self._processes:
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
