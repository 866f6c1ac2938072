"""`file.get`: the content of the file, a file that changes while it is read, and waiting for credit."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fairlead.wire.messages import Chunk, Credit, End

from support.agent.fixtures import StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.agent.transfers import MB, Call, error


@pytest.mark.parametrize("size", [0, 1, 64 << 10, 3 * MB + 7])
async def test_get_sends_the_file_unchanged(get: Call, folder: Path, size: int) -> None:
    data = os.urandom(size)
    path = folder / "data.bin"
    path.write_bytes(data)
    path.chmod(0o640)
    rows, octets, end = await get(path)
    status = path.stat()
    assert rows == [{"path": str(path), "size": size, "mode": "0640", "mtime": pytest.approx(status.st_mtime)}]
    assert octets == data
    assert json.loads(end.payload) == {"size": size, "sha256": hashlib.sha256(data).hexdigest()}


async def test_get_sends_the_file_from_an_offset(get: Call, folder: Path) -> None:
    path = folder / "data.bin"
    path.write_bytes(b"0123456789")
    rows, octets, end = await get(path, offset=7)
    assert rows[0]["size"] == 10
    assert octets == b"789"
    assert json.loads(end.payload) == {"size": 3, "sha256": hashlib.sha256(b"789").hexdigest()}
    assert (await get(path, offset=10))[1] == b""
    _, _, end = await get(path, offset=11)
    assert error(end).code == "offset_out_of_range"
    assert error(end).details["size"] == 10


async def test_get_waits_for_credit_and_does_not_hold_the_file_in_memory(
    gateway: Gateway, agent_process: StartAgentProcess, tmp_path: Path
) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(48 * MB)
    process = agent_process("-m", "fairlead", "agent", "run", "--url", gateway.url, "--id", "edge-1")
    link = await gateway.linked()
    memory = psutil.Process(process.pid)
    await link.command("first", "file.get", {"path": str(tmp_path / "agent.log")})
    await link.end("first")
    before = memory.memory_info().rss
    link.stores = False
    await link.command("c", "file.get", {"path": str(path)})
    largest = 0
    while not link.of(End, "c"):
        await link.until(lambda: link.unstored > 0)
        largest = max(largest, memory.memory_info().rss)
        await link.store(link.unstored)
    assert sum(len(c.payload) for c in link.of(Chunk, "c") if c.kind == "file") == 48 * MB
    assert largest - before < 6 * MB, f"{(largest - before) / MB:.1f} MB more"


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _touch(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"other")


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_append, "has 1048580"),
        (lambda path: os.truncate(path, 600_000), "became shorter"),
        (_touch, "was written to"),
        (_replace, "was replaced"),
        (lambda path: path.unlink(), "was removed"),
    ],
    ids=["grows", "shrinks", "is-written-to", "is-replaced", "is-removed"],
)
async def test_get_fails_when_the_file_changes_while_it_is_read(
    link: Link, folder: Path, change: Callable[[Path], None], words: str
) -> None:
    """The reader holds the agent in the middle of the file, then the file changes."""
    path = folder / "data.bin"
    path.write_bytes(bytes(MB))
    link.grants = False
    stream = await link.command("c", "file.get", {"path": str(path)})
    await link.until(lambda: stream.credit_left == 0)
    change(path)
    link.grants = True
    await link.send(Credit(id="c", bytes=2 * MB))
    stream.credit_left += 2 * MB
    end = await link.end("c")
    assert error(end).code == "file_changed"
    assert words in error(end).message
    assert str(path) in error(end).message
    assert error(end).temporary


async def test_get_can_be_cancelled_in_the_middle_of_a_file(link: Link, folder: Path) -> None:
    (folder / "data.bin").write_bytes(bytes(MB))
    link.grants = False
    stream = await link.command("c", "file.get", {"path": str(folder / "data.bin")})
    await link.until(lambda: stream.credit_left == 0)
    await link.cancel("c")
    assert (await link.end("c")).state == "cancelled"


async def test_many_transfers_run_at_the_same_time(link: Link, folder: Path) -> None:
    """More than there are threads: all are served."""
    for n in range(24):
        (folder / str(n)).write_bytes(bytes([n]) * 100_000)
        await link.command(f"c{n}", "file.get", {"path": str(folder / str(n))})
    async with asyncio.timeout(20):
        for n in range(24):
            assert (await link.end(f"c{n}")).state == "ok"
            assert link.output(f"c{n}", "file") == bytes([n]) * 100_000
