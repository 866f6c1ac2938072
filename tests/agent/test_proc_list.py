"""`proc.list`, against what psutil says of the same processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.agent.builtin.proc_list import processes
from fairlead.agent.errors import CommandError
from fairlead.wire.messages import End

from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.waiting import until

KEYS = {"pid", "ppid", "user", "state", "cpu_s", "rss_bytes", "started", "argv"}


@pytest.fixture
async def link(gateway: Gateway, serve: Serve) -> Link:
    serve(builtin_agent(gateway.url, "edge-1", "token-1"))
    return await gateway.linked()


async def listed(link: Link) -> dict[int, dict[str, Any]]:
    id = f"list-{len(link.of(End))}"
    await link.command(id, "proc.list")
    end = await link.end(id)
    assert end.state == "ok", end
    return {row["pid"]: row for row in link.rows(id)}


async def test_each_process_is_one_row(link: Link) -> None:
    argv = [sys.executable, "-c", "b = bytearray(20_000_000); input()", "an argument", "", "ä"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as child:
        try:
            process = psutil.Process(child.pid)
            await until(lambda: process.memory_info().rss >= 20_000_000)
            async with asyncio.timeout(20):  # until it waits for its input
                while (rows := await listed(link))[child.pid]["state"] != "S":
                    await asyncio.sleep(0.01)
            row, known = rows[child.pid], psutil.Process(child.pid)
            assert row.keys() == KEYS
            assert row["ppid"] == os.getpid()
            assert row["user"] == known.username()
            assert row["argv"] == argv
            assert row["rss_bytes"] == pytest.approx(known.memory_info().rss, rel=0.1)
            assert row["started"] == pytest.approx(known.create_time(), abs=2)
            assert row["cpu_s"] == pytest.approx(sum(known.cpu_times()[:2]), abs=0.2)
        finally:
            child.kill()
    assert os.getpid() in rows
    assert all(row.keys() == KEYS and row["argv"] for row in rows.values())


async def test_a_zombie_and_a_very_long_command_line_are_listed(link: Link) -> None:
    with (
        subprocess.Popen(["true"]) as zombie,
        subprocess.Popen(["sleep", "1000", *["1"] * 60_000]) as huge,
    ):
        try:
            await until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_ZOMBIE)
            rows = await listed(link)
            assert rows[zombie.pid]["state"] == "Z"
            assert rows[zombie.pid]["argv"] == ["[true]"]
            assert rows[huge.pid]["argv"][:2] == ["sleep", "1000"]
            assert len(json.dumps(rows[huge.pid])) < 64 << 10
        finally:
            huge.kill()


def test_a_system_without_proc_is_reported(tmp_path: Path) -> None:
    for missing, words in ((tmp_path / "none", "No such file"), (tmp_path, "nothing is mounted")):
        with pytest.raises(CommandError, match=words) as raised:
            processes(str(missing))
        assert raised.value.error_code == "unsupported"
