"""Some faults of Redis, at a small scale; `python -m faults.redis` plays all of them, for longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.redis.play import FAULTS, play
from faults.redis.played_fleet import Played
from faults.redis.redis_fault import LOCAL, SHORT

SEED = int(os.environ.get("FAULTS_SEED", "1"))
CHOSEN = tuple((f"server.{name}", LOCAL) for name in ("disk_full", "certificate_expired", "rewrite_failing", "slow"))


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "durability"), CHOSEN)
async def test_a_fault_of_redis_loses_nothing_in_silence_and_runs_nothing_twice(
    name: str, durability: str, tmp_path: Path
) -> None:
    result = Played()
    await play(FAULTS[name], durability, tmp_path, SEED, SHORT, result)
    assert (result.lost, result.doubled, result.broken) == (0, 0, 0)
    assert result.commands > 50
