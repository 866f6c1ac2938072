"""Starts the processes of a swarm, gives them the word, and adds up what they count.

Called by the command line. Processes and not threads, since one interpreter is one core and one limit of open files.
First all agents connect at the planned rate, then they are held, then they say goodbye; what came of it is a
`SwarmResult`. A process that dies takes its agents with it: they count as lost.
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
from fairlead.swarm.agent_pool import MISCONFIGURED
from fairlead.swarm.counters import Counters
from fairlead.swarm.options import SwarmOptions, WorkerOptions
from fairlead.swarm.worker import REPORT

START = 30.0
"""Seconds for a process to say its first word: an interpreter starts in one, on a busy machine in some."""
FUTILE = 10.0
"""Seconds without a single welcome after which the gateway is not there: it is told instead of waited for."""
CERTAIN = 2.0
"""Seconds that suffice when all answers say that somebody has to mend something first, the token for one."""
RAMP_SPARE = 60.0
"""Seconds beyond four times those that the rate needs: for refusals, their delays, and a gateway that is slower."""
STOP = 40.0
"""Seconds for all agents to leave; then SIGKILL."""
LINE = 1 << 20
"""Bytes of one report: some hundred buckets and counts take less than 100 KiB."""


class _Report(msgspec.Struct):
    counters: Counters
    last: bool


@dataclass(frozen=True, slots=True)
class SwarmResult:
    options: SwarmOptions
    counters: Counters
    complete: bool
    """All have been welcomed."""
    held: float
    """Seconds after that, or after they were waited for no longer."""
    died: int
    """Processes that ended before their time."""

    @property
    def well(self) -> bool:
        t = self.counters
        return self.complete and not (t.lost or t.missing or t.gone or t.unnoticed or t.violations or self.died)


Progress = Callable[[str, Counters, float], None]
"""What is done now, the sum of all processes, and seconds since the start. Called twice a second."""


class Coordinator:
    def __init__(
        self, options: SwarmOptions, *, duration: float | None, storm_every: float, progress: Progress
    ) -> None:
        """`duration` None: until a signal."""
        self._options = options
        self._duration = duration
        self._storm_every = storm_every
        self._progress = progress
        self._processes: list[asyncio.subprocess.Process] = []
        self._counters: list[Counters] = [Counters() for _ in range(options.processes)]
        self._last: set[int] = set()
        self._listeners: list[asyncio.Task[None]] = []
        self._told = asyncio.Event()
        self._died = 0
        self._began = 0.0

    async def run(self) -> SwarmResult:
        """Until the duration or a signal ends it. Raises ConnectionRefused when the gateway is not there."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._told.set)
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
                # -P: a folder of the working directory must not stand in for the standard library.
                sys.executable, "-P", "-m", "fairlead.swarm.worker",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE, start_new_session=True,
            )  # fmt: skip
            self._processes.append(process)
            self._tell(number, msgspec.json.encode(WorkerOptions(number, self._options, self._began)))
            self._listeners.append(asyncio.create_task(self._listen(number, process)))

    def _tell(self, number: int, line: bytes) -> None:
        stdin = self._processes[number].stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(line + b"\n")

    async def _listen(self, number: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            report = msgspec.json.decode(line, type=_Report)
            self._counters[number] = report.counters
            if report.last:
                self._last.add(number)
        if number not in self._last:
            self._died += 1
            counters = self._counters[number]
            counters.lost, counters.linked = counters.lost + counters.linked, 0

    async def _pass(self, most: float, phase: str) -> bool:
        """One report's time, or less; False when it is time to end."""
        try:
            async with asyncio.timeout(min(REPORT, most)):
                await self._told.wait()
        except TimeoutError:
            pass
        self._progress(phase, self._sum(), time.monotonic() - self._began)
        return not self._told.is_set() and self._died < len(self._processes)

    async def _ramp(self) -> bool:
        options, started = self._options, time.monotonic()
        deadline = options.agents / options.rate * 4 + RAMP_SPARE
        while await self._pass(REPORT, "connecting"):
            passed, counters = time.monotonic() - started, self._sum()
            if counters.once >= options.agents:
                return True
            mistaken = bool(counters.refused) and counters.refused.keys() <= set(MISCONFIGURED)
            if counters.once == 0 and passed > (CERTAIN if mistaken else FUTILE):
                if counters.attempts == 0 and passed < START:
                    continue
                raise ConnectionRefused(
                    f"no agent could connect to {options.url} within {passed:.0f} s: {counters.reason}"
                )
            if passed > deadline:
                break
        if self._died == len(self._processes):
            raise FairleadError("all processes of the swarm have died; what they said stands above")
        return self._sum().once >= options.agents

    async def _hold(self) -> None:
        end = time.monotonic() + (self._duration if self._duration is not None else float("inf"))
        storms = "storm" in self._options.mix
        storm = time.monotonic()
        while not self._told.is_set() and (now := time.monotonic()) < end:
            if storms and now >= storm:
                storm = now + self._storm_every * random.uniform(0.8, 1.2)
                for number in range(len(self._processes)):
                    self._tell(number, b"storm")
            if not await self._pass(end - now, "holding"):
                return

    async def _stop(self) -> None:
        for number in range(len(self._processes)):
            self._tell(number, b"stop")
        try:
            async with asyncio.timeout(STOP):
                await asyncio.gather(*self._listeners)
        except TimeoutError:
            self._progress("killing what does not end", self._sum(), time.monotonic() - self._began)

    async def _kill(self) -> None:
        for number, process in enumerate(self._processes):
            if process.stdin is not None:
                process.stdin.close()
            if process.returncode is None and number not in self._last:
                process.kill()
        for listener in self._listeners:
            listener.cancel()
        for process in self._processes:
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
