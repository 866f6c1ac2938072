"""Plays one fault of runs: its servers, a fleet of two nodes, the agents, the run, the fault, and the judgement.

The program `faults.runs` and the tests call it.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from faults.fault_fleet import FaultFleet
from faults.runs.node_faults import NODE_FAULTS
from faults.runs.redis_faults import REDIS_FAULTS
from faults.runs.run_crowd import crowd_of
from faults.runs.run_fault import SHORT, RunFault, full_lengths
from faults.runs.run_judgement import Judged, judge
from faults.runs.run_scene import RunScene
from faults.runs.target_faults import TARGET_FAULTS

FAULTS = {fault.name: fault for fault in (*NODE_FAULTS, *REDIS_FAULTS, *TARGET_FAULTS)}
AGENTS = 24
"""Of the SDK, in the tests."""


async def play(fault: RunFault, folder: Path, seed: int, found: Judged, simulated: int = 0) -> None:
    """Raises AssertionError with what was wrong. `found` is filled in any case. `simulated` agents take the place of
    those of the SDK, and the fault then lasts longer."""
    rng = random.Random(seed)
    async with fault.servers(folder / "servers") as servers:
        fleet = FaultFleet(folder, rng, agents=0 if simulated else AGENTS, redis=servers.url)
        async with fleet, crowd_of(fleet, simulated) as crowd:
            scene = RunScene(fleet, servers, crowd, full_lengths(simulated) if simulated else SHORT)
            began = time.monotonic()
            try:
                await fault.play(scene)
                await scene.ended()
                found.seconds = time.monotonic() - began
                await fleet.stop_events()
                await judge(scene, found)
            finally:
                await scene.stop_looking()
