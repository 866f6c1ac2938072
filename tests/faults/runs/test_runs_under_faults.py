"""Every fault in the middle of a run that is not played elsewhere, with some tens of agents; `python -m faults.runs`
plays all of them with thousands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.runs.play import AGENTS, FAULTS, play
from faults.runs.run_judgement import Judged
from support.valkey.turned_clock import compiler

SEED = int(os.environ.get("FAULTS_SEED", "1"))
ELSEWHERE = {"owner_killed"}
"""tests/runs/test_run_faults.py has it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in ELSEWHERE])
async def test_a_fault_in_the_middle_of_a_run_runs_nothing_twice_and_leaves_nothing_behind(
    name: str, tmp_path: Path
) -> None:
    if name == "paused_for_an_hour" and compiler() is None:
        why = "NOT tested: a clock that is turned needs a C compiler (Debian and Ubuntu: apt install gcc libc6-dev)"
        if os.environ.get("CI") == "1":
            pytest.fail(why)
        pytest.skip(why)
    found = Judged()
    await play(FAULTS[name], tmp_path, SEED, found)
    assert found.targets >= AGENTS
    assert found.executed > 0
    assert found.twice == 0
