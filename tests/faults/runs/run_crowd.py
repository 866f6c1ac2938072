"""The agents that a run runs on while a fault is played: those of the SDK in this process, or simulated ones by the
thousand. Either way they can be held in the middle of the run, and say afterwards what they have executed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from faults.fault_fleet import FaultFleet
from support.swarm_process import Swarm

KEY = "the run"
PREFIX = "crowd"
RATE = 400
"""Simulated agents that connect in a second, through the balancer of this process."""

SLOWEST = 20
"""Those that connect in a second on a machine that does much else."""


class Crowd(Protocol):
    names: list[str]
    output: str | None
    """All that each of them writes; None if that is not known."""

    async def hold(self) -> None:
        """From now on nothing that runs ends."""

    async def go_on(self, count: int | None = None) -> None:
        """Let so many go on, or all; simulated ones go on all together."""

    async def executed(self) -> int | dict[str, int]:
        """How often each has executed the method; of simulated ones only the sum is known. Ends them."""


class SdkCrowd:
    """Agents of the SDK: each step waits until it may end, so nothing hangs on how fast this machine is."""

    output: str | None = "begun\ndone\n"

    def __init__(self, fleet: FaultFleet) -> None:
        self._fleet = fleet
        self.names = fleet.names

    async def hold(self) -> None:
        self._fleet.gate = asyncio.Semaphore(0)

    async def go_on(self, count: int | None = None) -> None:
        for _ in range(len(self.names) if count is None else count):
            self._fleet.gate.release()

    async def executed(self) -> dict[str, int]:
        return {name: self._fleet.ledger.runs(f"{KEY} {name}") for name in self.names}


class SwarmCrowd:
    """Simulated agents, which end at once what they get: they are held by stopping their processes."""

    output: str | None = None

    def __init__(self, swarm: Swarm, count: int) -> None:
        self._swarm = swarm
        self.names = [f"{PREFIX}-{n}" for n in range(count)]

    async def hold(self) -> None:
        self._swarm.freeze()

    async def go_on(self, count: int | None = None) -> None:
        self._swarm.thaw()

    async def executed(self) -> int:
        self._swarm.process.send_signal(signal.SIGINT)
        found: dict[str, Any] = await asyncio.to_thread(self._swarm.result)
        return int(found["commands"]["received"])

    def end(self) -> None:
        if self._swarm.process.poll() is None:
            self._swarm.thaw()
            self._swarm.process.send_signal(signal.SIGTERM)
            self._swarm.process.communicate()


@asynccontextmanager
async def crowd_of(fleet: FaultFleet, simulated: int) -> AsyncIterator[Crowd]:
    """The agents of the SDK that the fleet has, or so many simulated ones."""
    if not simulated:
        yield SdkCrowd(fleet)
        return
    swarm = Swarm(
        f"ws://127.0.0.1:{fleet.balancer.port}", fleet.folder, f"--agents={simulated}", "--processes=1",
        f"--rate={RATE}", f"--id-prefix={PREFIX}",
    )  # fmt: skip
    crowd = SwarmCrowd(swarm, simulated)
    try:
        await fleet.linked(simulated, 60 + simulated / SLOWEST)
        yield crowd
    finally:
        await asyncio.to_thread(crowd.end)
