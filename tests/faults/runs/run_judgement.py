"""Judges a run after a fault: every target has one end, the sums add up, nothing ran twice, and nothing is left behind.

`play` calls it once the run has ended. What is left behind is asked of the servers and of every node, not of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fairlead.fleet.runs.keys import OPEN_RUNS, run_keys
from fairlead.store.reply import integer

from faults.fault_fleet import FaultFleet
from faults.run import check_keys
from faults.runs.run_scene import RunScene, sums

NEVER_RAN = frozenset({"not_started", "skipped", "offline", "expired"})
PATIENCE = 60.0
HELD = ("fairlead_runs_driven", "fairlead_tasks", "fairlead_followers")
"""What a node has of a run that goes on."""


@dataclass
class Judged:
    """What a fault has done to its run."""

    targets: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    """Of the errors with which targets failed."""
    executed: int = 0
    twice: int = 0
    seconds: float = 0.0
    longest_pause: float = 0.0


async def judge(scene: RunScene, found: Judged) -> None:
    """Raises AssertionError with what was wrong; `found` is filled in any case."""
    ended = await scene.ended()
    found.targets, found.counts, found.longest_pause = ended["targets"], ended["counts"], scene.longest_pause
    assert ended["state"] == scene.state, ended
    assert sum(ended["counts"].values()) == ended["targets"] == len(scene.crowd.names) + len(scene.others), ended
    assert ended["counts"].keys() <= scene.ends, ended
    lines = await scene.results(output=scene.crowd.output is not None)
    found.codes = Counter(line["code"] for line in lines if line["state"] == "failed")
    assert found.codes.keys() <= scene.codes, f"{scene.run}: {found.codes}"
    assert sums(lines) + _not_started(ended) == ended["counts"], "the results are others than the counts"
    assert len({line["agent"] for line in lines}) == len(lines), "a target has ended twice"
    _check_output(scene, lines)
    await check_left_behind(scene.fleet, scene.run)
    _check_executions(scene, lines, await scene.crowd.executed(), found)


def _not_started(ended: dict[str, Any]) -> Any:
    """Those that never started have no results."""
    return sums([{"state": "not_started"}] * ended["counts"].get("not_started", 0))


def _check_output(scene: RunScene, lines: list[dict[str, Any]]) -> None:
    """Whoever ended well has all of its output, once."""
    if (expected := scene.crowd.output) is not None:
        of_crowd = set(scene.crowd.names)
        wrong = [
            line for line in lines
            if line["state"] == "ok" and line["agent"] in of_crowd
            and "".join(part["text"] for part in line["output"]) != expected
        ]  # fmt: skip
        assert not wrong, f"{len(wrong)} targets have other output than they wrote: {wrong[:2]}"


def _check_executions(
    scene: RunScene, lines: list[dict[str, Any]], executed: int | dict[str, int], found: Judged
) -> None:
    of_crowd = set(scene.crowd.names)
    states = {line["agent"]: line["state"] for line in lines if line["agent"] in of_crowd}
    well = sum(state == "ok" for state in states.values())
    may = sum(state not in NEVER_RAN for state in states.values())
    if isinstance(executed, int):  # that of all together is known
        found.executed, found.twice = executed, max(0, executed - may)
        assert well <= executed <= may, f"{executed} executions of {well} targets that ended well, of {may} in all"
        return
    found.executed = sum(executed.values())
    found.twice = sum(count > 1 for count in executed.values())
    assert not found.twice, f"ran twice: {[agent for agent, count in executed.items() if count > 1]}"
    ends = [(agent, count, states.get(agent, "not_started")) for agent, count in executed.items()]
    wrong = [end for end in ends if (end[2] == "ok" and end[1] != 1) or (end[2] in NEVER_RAN and end[1])]
    assert not wrong, f"agents with their executions, and how each ended: {wrong[:5]}"


async def check_left_behind(fleet: FaultFleet, run: str) -> None:
    """The run has ended. It is in no index of what goes on, nothing of it is without an end, and no node holds
    anything for it."""
    end = time.monotonic() + PATIENCE
    while await fleet.redis("ZSCORE", OPEN_RUNS, run) is not None:
        assert time.monotonic() < end, f"{OPEN_RUNS} has a run that has ended"
        await asyncio.sleep(0.2)
    for node in fleet.nodes:
        while left := [name for name in HELD if await fleet.metric(node, name)]:
            assert time.monotonic() < end, f"{node.name} still has {left}"
            await asyncio.sleep(0.2)
    for key in run_keys(run):
        # -2 means that the key does not exist, because the run stored nothing under it.
        assert integer(await fleet.redis("PTTL", key)) != -1, f"{key} is kept for ever"
    await check_keys(fleet)
