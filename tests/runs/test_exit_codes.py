"""Runs of programs: an exit code other than 0 is a failure of its target, if the run says so."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

from fairlead.agent import Command

from support.agent.hosted_agents import HostedAgents
from support.cli.processes import environment
from support.waiting import until

if TYPE_CHECKING:
    from runs.conftest import MakeRunFleet, RunFleet

    from fairlead.store.embedded_valkey.server import EmbeddedValkey

pytestmark = pytest.mark.timeout(240)

EXITS: dict[str, dict[str, int]] = {
    "exit-0a": {"exit_code": 0}, "exit-0b": {"exit_code": 0}, "exit-3a": {"exit_code": 3}, "exit-3b": {"exit_code": 3},
    "exit-9": {"signal": 9},
}  # fmt: skip


class Programs(HostedAgents):
    """Agents whose programs exit as EXITS says, after as much output as the payload asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    def connect_all(self, link: str) -> None:
        for name, result in EXITS.items():
            self.connect(link, name, {"exec": self._program(result)})

    def _program(self, result: dict[str, int]) -> Callable[..., Any]:
        async def run(command: Command, size: int = 0, argv: list[str] | None = None) -> dict[str, int]:
            await self.gate.wait()
            for _ in range(size):
                await command.write("stdout", b"x" * 50_000)
            return result

        return run


@pytest.fixture
async def programs() -> AsyncIterator[Programs]:
    made = Programs()
    yield made
    made.gate.set()
    await made.stop()


async def online(fleet: RunFleet, node: int = 0) -> None:
    await until(
        lambda: asyncio.to_thread(lambda: all(fleet.agent(name, node).get("state") == "online" for name in EXITS))
    )


async def begun(fleet: RunFleet, **body: object) -> str:
    return await asyncio.to_thread(lambda: fleet.begin(0, **{"payload": {"argv": ["x"]}} | body))


def outcomes(ended: dict[str, Any]) -> set[tuple[str, str | None, int]]:
    return {(one["state"], one["code"], one["count"]) for one in ended["outcomes"]}


async def test_a_program_that_fails_is_a_failure_of_its_target_if_the_run_says_so(
    fleet: RunFleet, programs: Programs
) -> None:
    """With little output the owner is told how it exited, with much it reads that."""
    programs.connect_all(fleet.nodes[1].link)
    await online(fleet)
    agents = list(EXITS)
    for size in (0, 4):
        wanted = {"method": "exec", "agents": agents, "payload": {"argv": ["x"], "size": size}}
        plain = await begun(fleet, **wanted)
        assert (await asyncio.to_thread(fleet.end, plain))["counts"] == {"ok": 5}
        run = await begun(fleet, **wanted, fail_on_exit=True)
        counted = await asyncio.to_thread(fleet.end, run)
        assert counted["counts"] == {"ok": 2, "failed": 3}
        assert outcomes(counted) == {("ok", None, 2), ("failed", "exit_3", 2), ("failed", "signal_9", 1)}
        lines = (await asyncio.to_thread(fleet.results, run))[:-1]
        assert {(line["agent"], line["code"]) for line in lines if line["state"] == "failed"} == {
            ("exit-3a", "exit_3"), ("exit-3b", "exit_3"), ("exit-9", "signal_9"),
        }  # fmt: skip
        assert {next(iter(line["payload"].items())) for line in lines} == {
            ("exit_code", 0), ("exit_code", 3), ("signal", 9),
        }  # fmt: skip


async def test_a_failed_program_ends_the_canary_and_is_tried_again(fleet: RunFleet, programs: Programs) -> None:
    programs.connect_all(fleet.nodes[1].link)
    await online(fleet)
    agents = ["exit-3a", *(name for name in EXITS if name != "exit-3a")]
    run = await begun(fleet, method="exec", agents=agents, fail_on_exit=True, canary=1, concurrency=1)
    ended = await asyncio.to_thread(fleet.end, run)
    assert (ended["state"], ended["counts"]) == ("aborted", {"failed": 1, "not_started": 4})
    all_of_them = await begun(fleet, method="exec", agents=agents, fail_on_exit=True)
    assert (await asyncio.to_thread(fleet.end, all_of_them))["counts"] == {"ok": 2, "failed": 3}
    again = await command_line(fleet, "runs", "retry", all_of_them)
    assert again.returncode == 1
    assert b"done: 3 of 3: 3 failed" in again.stderr


async def test_the_command_line_counts_exit_codes_of_exec_unless_told_otherwise(
    fleet: RunFleet, programs: Programs
) -> None:
    programs.connect_all(fleet.nodes[0].link)
    await online(fleet)
    run = ("run", "--agents", ",".join(EXITS))
    failed = await command_line(fleet, *run, "exec", 'argv:=["x"]')
    assert failed.returncode == 1
    assert b"== 2 agents failed (exit_3): exit-3" in failed.stdout
    assert b"== 1 agent failed (signal_9): exit-9" in failed.stdout
    passed = await command_line(fleet, *run, "--no-fail-on-exit", "exec", 'argv:=["x"]')
    assert passed.returncode == 0
    assert b"5 of 5: 5 ok" in passed.stderr


async def command_line(fleet: RunFleet, *args: str) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-P", "-m", "fairlead", *args]

    def call() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            line, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False,
            env=environment(fleet.nodes[0].api),
        )  # fmt: skip

    return await asyncio.to_thread(call)


async def test_another_owner_counts_them_in_the_same_way(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, programs: Programs
) -> None:
    fleet = make_fleet(own_valkey.url)
    owner, _ = fleet.node(), fleet.node()
    programs.connect_all(fleet.nodes[1].link)
    await online(fleet, 1)
    programs.gate.clear()
    run = await begun(fleet, method="exec", agents=list(EXITS), fail_on_exit=True)
    await until(lambda: asyncio.to_thread(lambda: fleet.get(run, 1)["counts"] == {"started": 5}))
    owner.signal(signal.SIGKILL)
    programs.gate.set()  # they end while nobody owns the run
    ended = await asyncio.to_thread(fleet.end, run, 1)
    assert ended["node"] is None
    assert outcomes(ended) == {("ok", None, 2), ("failed", "exit_3", 2), ("failed", "signal_9", 1)}
