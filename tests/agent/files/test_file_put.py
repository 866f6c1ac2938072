"""`file.put` replaces a file atomically or not at all, and leaves nothing behind, not even on a full disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.wire.messages import Credit, End

from support.agent.fixtures import StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.agent.transfers import MB, Call, error, leftovers


@pytest.mark.parametrize("size", [0, 1, MB + 3])
async def test_put_writes_the_file(put: Call, folder: Path, size: int) -> None:
    data = os.urandom(size)
    digest = hashlib.sha256(data).hexdigest()
    path = folder / "new.bin"
    end = await put(path, data, size=size, sha256=digest.upper(), mode="0750")
    assert json.loads(end.payload) == {"path": str(path), "size": size, "sha256": digest}
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o7777 == 0o750
    assert leftovers(folder) == []


async def test_put_takes_the_content_that_the_command_names(link: Link, folder: Path) -> None:
    """The agent asks for it, and keeps nothing that is not what the digest says."""
    data, path = os.urandom(100_000), folder / "new.bin"
    arguments = {"path": str(path), "content": True, "sha256": hashlib.sha256(data).hexdigest()}
    for id, sent in (("wrong", data[1:]), ("right", data)):
        await link.command(id, "file.put", arguments)
        await link.until(lambda id=id: any(credit.bytes == 0 for credit in link.of(Credit, id)))  # type: ignore[misc]
        await link.feed(id, *(sent[at : at + (64 << 10)] for at in range(0, len(sent), 64 << 10)))
        await link.feed_end(id)
        end = await link.end(id)
        assert end.state == "ok" if id == "right" else error(end).code == "digest_mismatch"
        assert path.exists() is (id == "right")
    assert path.read_bytes() == data
    await link.command("c", "file.put", {"path": str(path), "content": True})
    assert error(await link.end("c")).code == "invalid_arguments"


async def test_put_replaces_the_file_atomically(put: Call, link: Link, folder: Path) -> None:
    """Until the end the old file stands, whole."""
    path = folder / "config"
    path.write_text("old")
    path.chmod(0o600)
    await link.command("c", "file.put", {"path": str(path)})
    await link.feed("c", b"ne")
    await link.until(lambda: bool(link.of(Credit, "c")))
    assert path.read_text() == "old"
    await link.feed("c", b"w")
    await link.feed_end("c")
    assert (await link.end("c")).state == "ok"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o7777 == 0o644, "the mode is that of the command"


async def test_put_without_overwrite_keeps_an_existing_file(put: Call, link: Link, folder: Path) -> None:
    path = folder / "config"
    path.write_text("old")
    end = await put(path, b"new", overwrite=False)
    assert error(end).code == "file_exists"
    path.unlink()
    await link.command("c", "file.put", {"path": str(path), "overwrite": False})
    await link.feed("c", b"new")
    await link.until(lambda: bool(link.of(Credit, "c")))
    path.write_text("came meanwhile")
    await link.feed_end("c")
    assert error(await link.end("c")).code == "file_exists"
    assert path.read_text() == "came meanwhile"
    path.unlink()
    assert (await put(path, b"new", overwrite=False)).state == "ok"
    assert path.read_text() == "new"
    assert leftovers(folder) == []


async def test_put_makes_folders_when_asked_to(put: Call, folder: Path) -> None:
    path = folder / "a" / "b" / "file"
    end = await put(path, b"x")
    assert error(end).code == "not_found"
    assert "parents=true" in error(end).message
    assert (await put(path, b"x", parents=True)).state == "ok"
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"sha256": "0" * 64}, "digest_mismatch"),
        ({"size": 4}, "size_mismatch"),
        ({"size": 6}, "size_mismatch"),
        ({"size": 65 * MB}, "too_large"),
    ],
    ids=["digest", "more-came", "less-came", "too-large"],
)
async def test_put_of_another_size_or_digest_keeps_the_old_file(
    put: Call, folder: Path, more: dict[str, object], code: str
) -> None:
    path = folder / "config"
    path.write_text("old")
    end = await put(path, b"12345", **more)
    assert error(end).code == code
    assert str(path) in error(end).message
    assert path.read_text() == "old"
    assert leftovers(folder) == []


async def test_cancel_of_a_put_leaves_nothing(link: Link, folder: Path) -> None:
    await link.command("c", "file.put", {"path": str(folder / "new")})
    await link.feed("c", b"some")
    await link.until(lambda: bool(link.of(Credit, "c")))
    assert len(leftovers(folder)) == 1
    await link.cancel("c")
    assert (await link.end("c")).state == "cancelled"
    assert os.listdir(folder) == []


async def test_cancel_of_a_put_at_its_start_leaves_nothing(link: Link, folder: Path) -> None:
    """The cancel comes while a thread makes the temporary file."""
    for n in range(30):
        await link.command(f"c{n}", "file.put", {"path": str(folder / f"new{n}")})
        await asyncio.sleep(0.0003 * (n % 10))
        await link.cancel(f"c{n}")
    for n in range(30):
        assert (await link.end(f"c{n}")).state == "cancelled"
    assert os.listdir(folder) == []


def _tmpfs_command(folder: Path) -> list[str]:
    """A prefix that runs a command where `folder` is a file system of 1 MB: a disk that really fills."""
    mount = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
    return ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c", mount, str(folder)]


def _can_mount(folder: Path) -> bool:
    try:
        tried = subprocess.run([*_tmpfs_command(folder), "true"], capture_output=True, timeout=20, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("condition", ["disk", "limit"])
async def test_a_full_disk_ends_put_and_leaves_nothing(
    gateway: Gateway, agent_process: StartAgentProcess, folder: Path, condition: str
) -> None:
    """A file system of 1 MB where this user may mount one, else (and always once) the kernel's limit of file sizes."""
    run = ("-m", "fairlead", "agent", "run", "--url", gateway.url, "--id", "edge-1")
    if condition == "disk" and _can_mount(folder):
        inner = [*_tmpfs_command(folder), sys.executable, *run]
        agent_process("-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *inner)
        reason = "No space left"
    else:
        agent_process("-c", LIMITED, *run)
        reason = "File too large"
    link = await gateway.linked()
    stream = await link.command("c", "file.put", {"path": str(folder / "big")})
    sent = 0
    while sent < 3 * MB:
        await link.until(lambda: stream.input_credit >= 64 << 10 or bool(link.of(End, "c")))
        if link.of(End, "c"):
            break
        await link.feed("c", bytes(64 << 10))
        sent += 64 << 10
    failure = error(await link.end("c"))
    assert failure.code == "disk_full"
    assert reason in failure.message
    assert str(folder / "big") in failure.message
    assert 500_000 < int(str(failure.details["bytes"])) <= MB
    assert failure.temporary
    await link.command("ls", "exec", {"argv": ["ls", "-A", str(folder)]})
    await link.end("ls")
    assert link.output("ls") == b"", "the temporary file was left behind"
