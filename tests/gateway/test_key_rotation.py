"""Keys are rotated from the command line: a real node, a real Valkey, the shipped agent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.waiting import until


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "fairlead", *arguments]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("old", "new"):
        made = run("keys", "generate", str(tmp_path / name), "--comment", name)
        assert made.returncode == 0, made.stderr
    return tmp_path


@pytest.fixture
def agents(gateway: GatewayProcess, keys: Path) -> Iterator[list[str]]:
    """The ids of two agents that pin the key `old`."""
    processes = []
    names = ["rotated-1", "rotated-2"]
    with (keys / "log").open("wb") as log:
        for name in names:
            argv = [
                sys.executable, "-m", "fairlead", "agent", "run", "--url", gateway.link, "--id", name, "--journal",
                str(keys / name), "--trusted-keys", str(keys / "old.pub"),
            ]  # fmt: skip
            processes.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    yield names
    for process in processes:
        process.kill()
        process.wait()


async def test_a_fleet_goes_over_to_another_key(
    gateway: GatewayProcess, api: GatewayApi, keys: Path, agents: list[str]
) -> None:
    async def online() -> bool:
        answers = [await api.http.get(f"/v1/agents/{agent}") for agent in agents]
        return all(one.status_code == 200 and one.json()["state"] == "online" for one in answers)

    await until(online)

    async def cli(name: str, *rest: str) -> subprocess.CompletedProcess[bytes]:
        return await asyncio.to_thread(run, *name.split(), *rest)

    async def runs(key: str) -> list[int]:
        signing = ("--api", gateway.api, "--sign-with", str(keys / key), "-n")
        return [(await cli("exec", *signing, agent, "--", "true")).returncode for agent in agents]

    async def rotated(statement: str, key: str) -> subprocess.CompletedProcess[bytes]:
        return await cli(
            "keys rotate", "--api", gateway.api, "--sign-with", str(keys / key), str(keys / statement), *agents
        )

    for name, made_of in (("both", ("old", "new")), ("newest", ("new",))):
        (keys / f"{name}.pub").write_bytes(b"".join((keys / f"{one}.pub").read_bytes() for one in made_of))
        signed = await cli("keys sign", "--sign-with", str(keys / "old"), str(keys / f"{name}.pub"))
        assert signed.returncode == 0, signed.stderr
        assert len(json.loads(signed.stdout)["keys"]) == len(made_of)
        (keys / f"{name}.json").write_bytes(signed.stdout)

    assert (await runs("old"), await runs("new")) == ([0, 0], [1, 1])
    first = await rotated("both.json", "old")
    assert first.returncode == 0, first.stderr
    assert [line.partition(b":")[0].decode() for line in first.stdout.splitlines()] == agents
    assert (await runs("old"), await runs("new")) == ([0, 0], [0, 0])
    second = await rotated("newest.json", "new")
    assert second.returncode == 0, second.stderr
    assert (await runs("old"), await runs("new")) == ([1, 1], [0, 0])
    back = await rotated("both.json", "new")
    assert back.returncode == 1
    assert back.stderr.count(b"does not trust the key") == 2


def test_what_is_no_statement_is_told(keys: Path) -> None:
    (keys / "text").write_text("no JSON")
    assert b"expected what `fairlead keys sign` has printed" in run("keys", "rotate", str(keys / "text"), "a").stderr
    unsigned = run("keys", "sign", str(keys / "new.pub"))
    assert (unsigned.returncode, b"no key signs the statement" in unsigned.stderr) == (2, True)
    pattern = run("keys", "sign", "--sign-with", str(keys / "old"), "--agents", "a*b", str(keys / "new.pub"))
    assert (pattern.returncode, b"the beginning of ids and *" in pattern.stderr) == (2, True)
