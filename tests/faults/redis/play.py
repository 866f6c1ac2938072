"""Plays one fault of a Redis: its servers, a fleet with commands on all agents, the fault, and the judgement.

The program `faults.redis` and the tests call it.
"""

from __future__ import annotations

from pathlib import Path

from faults.redis.cluster_faults import CLUSTER_FAULTS
from faults.redis.managed_faults import MANAGED_FAULTS
from faults.redis.memory_faults import MEMORY_FAULTS
from faults.redis.played_fleet import Played, played
from faults.redis.redis_fault import LOCAL, Lengths, RedisFault, Scene
from faults.redis.sentinel_faults import SENTINEL_FAULTS
from faults.redis.server_faults import SERVER_FAULTS

FAULTS = {
    fault.name: fault for fault in (*SENTINEL_FAULTS, *CLUSTER_FAULTS, *MANAGED_FAULTS, *SERVER_FAULTS, *MEMORY_FAULTS)
}


async def play(
    fault: RedisFault, durability: str, folder: Path, seed: int, lengths: Lengths, result: Played
) -> None:  # fmt: skip
    """Raises AssertionError with what was wrong. `result` is filled in any case."""
    told = fault.told if durability == LOCAL else frozenset[str]()
    flags = ("--durability", durability, *fault.flags)
    async with fault.servers(folder / "servers") as servers:
        concerned: set[str] = set()
        async with played(
            folder,
            servers.url,
            told,
            flags,
            agents=fault.agents,
            rate=fault.rate,
            seed=seed,
            concerned=concerned,
            result=result,
            events=fault.events,
            results=fault.results,
        ) as fleet:
            scene = Scene(fleet, servers, lengths, concerned)
            scene.concerns(set(fleet.names))
            await fault.play(scene)
