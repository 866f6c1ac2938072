"""`fairlead store` against the Valkey of a real node: what fills it is named, by kind, agent, method and command."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from fairlead.cli.fleet.store import CONTENTS
from fairlead.fleet.schema import KEY_TYPES
from fairlead.store.pipeliner import Pipeliner

from support.cli.processes import Part, gateway
from support.waiting import wait_until

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def store_foreign_key(data: Path) -> None:
    async def write() -> None:
        store = Pipeliner(f"unix://{data / 'valkey' / 'valkey.sock'}")
        store.start()
        assert await store.wait_available(10)
        await store.submit("SET", "somebody:else", b"x" * 100_000)
        await store.aclose()

    asyncio.run(write())


def test_what_fills_redis_is_named(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    node, links, api, _ = gateway(tmp_path)
    agent = Part(tmp_path / "agent.log", "agent", "run", "--id=web-1", "--url", links)
    try:
        wait_until(lambda: b"web-1" in run("agents", "ls", "--state=online", "-o", "name", api=api).stdout)
        for size in (300_000, 10):
            done = run("exec", "web-1", "--", "head", "-c", str(size), "/dev/urandom", api=api)
            assert done.returncode == 0, done.stderr
        store_foreign_key(data)
        done = run("store", "--data", str(data), "-o", "json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        table = run("store", "--data", str(data))
    finally:
        agent.stop()
        node.stop()
    assert found["kinds"]["fl2:out"]["bytes"] >= 300_000
    assert found["kinds"]["fl2:cmd"] | {"bytes": 0} == {"keys": 2, "bytes": 0, "estimated": False}
    assert found["kinds"]["other"]["bytes"] >= 100_000
    assert found["agents"]["web-1"] > found["methods"]["exec"] >= 300_000
    assert [one["bytes"] >= 300_000 for one in found["commands"]] == [True, False]
    assert (found["commands"][0]["agent"], found["commands"][0]["method"]) == ("web-1", "exec")
    assert found["used_bytes"] > sum(kind["bytes"] for kind in found["kinds"].values()) / 2
    text = table.stdout.decode()
    assert "without a maxmemory" in text
    assert found["commands"][0]["id"] in text


def test_the_table_says_what_is_in_each_kind() -> None:
    missing = {key.partition(":{")[0] for key in KEY_TYPES} - CONTENTS.keys()
    assert missing == set()


def test_a_redis_that_is_away_is_named_with_what_to_do(run: Run, tmp_path: Path) -> None:
    done = run("store", "--data", str(tmp_path))
    assert done.returncode == 3
    assert b"name it with --redis or FAIRLEAD_REDIS" in done.stderr
    assert run("store", "--redis", "http://x").returncode == 2
