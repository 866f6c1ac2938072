"""Every fault once, at a small scale; run.py plays them longer and in any order."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from faults.fault_fleet import FaultFleet
from faults.run import Tally, play
from faults.scenarios import SCENARIOS, kill

SEED = int(os.environ.get("FAULTS_SEED", "1"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", SCENARIOS)
async def test_fault_loses_and_doubles_nothing(fault: str) -> None:
    tally = Tally()
    await play(fault, random.Random(SEED), agents=20, rate=20.0, tally=tally)
    assert tally.commands > 10
    assert (tally.lost, tally.doubled, tally.broken) == (0, 0, 0)


@pytest.mark.timeout(120)
async def test_output_is_complete_though_the_node_of_the_agent_is_killed(tmp_path: Path) -> None:
    """`fairlead exec` through one node, the shipped agent on the other, which is killed in mid-stream."""
    async with FaultFleet(tmp_path, random.Random(SEED), agents=0) as fleet:
        holder, other = fleet.nodes
        command = [sys.executable, "-m", "fairlead"]
        agent = await asyncio.create_subprocess_exec(
            *command, "agent", "run", "--id", "shipped", "--url", f"ws://127.0.0.1:{fleet.balancer.port}",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            await fleet.linked(1)
            if await fleet.holder("shipped") is other:
                holder, other = other, holder
            script = "for i in $(seq 400); do echo $i; sleep 0.02; done"
            call = await asyncio.create_subprocess_exec(
                *command, "exec", "--api", f"http://127.0.0.1:{other.api}", "shipped", "--", "sh", "-c", script,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert call.stdout is not None
            async with asyncio.timeout(60):
                first = [await call.stdout.readline() for _ in range(100)]
                await kill(holder)
                output, talk = await call.communicate()
            assert call.returncode == 0, talk.decode()
            assert b"".join(first) + output == b"".join(b"%d\n" % n for n in range(1, 401))
        finally:
            agent.terminate()
            await agent.wait()
