"""`file.get` and `file.put`: the octets, what they promise of a file, and the folders that they keep to."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.agent.builtin.options import FileOptions, Options
from fairlead.wire.messages import Ack, Chunk, Credit, End, Error

if TYPE_CHECKING:
    from tests.agent.conftest import Gateway, Link

MB = 1 << 20
WINDOW = 128 << 10
DIGIT = "0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The one root of the agent; what lies beside it is forbidden."""
    root = tmp_path / "base"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    return root


@pytest.fixture
async def link(gateway: Gateway, serve: Callable[..., Any], folder: Path) -> Link:
    beneath = FileOptions(roots=(str(folder),), max_bytes=64 * MB)
    agent = builtin_agent(gateway.url, "edge-1", "token-1", options=Options(file_get=beneath, file_put=beneath))
    serve(agent)
    return await gateway.linked(window=WINDOW)


Call = Callable[..., Any]


@pytest.fixture
def get(link: Link) -> Call:
    """(rows, octets, end)"""
    count = 0

    async def call(path: object, **more: object) -> tuple[list[Any], bytes, End]:
        nonlocal count
        count += 1
        id = f"get-{count}"
        await link.command(id, "file.get", {"path": str(path), **more})
        end = await link.end(id)
        return link.rows(id), link.output(id, "file"), end

    return call


@pytest.fixture
def put(link: Link) -> Call:
    count = 0

    async def call(path: object, data: bytes, **more: object) -> End:
        nonlocal count
        count += 1
        id = f"put-{count}"
        stream = await link.command(id, "file.put", {"path": str(path), **more})
        for start in range(0, len(data), 32 << 10):
            await link.until(lambda: stream.input_room >= 32 << 10 or bool(link.of(End, id)))
            if link.of(End, id):
                return link.of(End, id)[0]
            await link.feed(id, data[start : start + (32 << 10)])
        await link.feed_end(id)
        return await link.end(id)

    return call


def error(end: End) -> Error:
    assert end.state == "error", end
    assert end.error is not None
    return end.error


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".part")]


# -- file.get --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 64 << 10, 3 * MB + 7])
async def test_get_sends_the_file_as_it_is(get: Call, folder: Path, size: int) -> None:
    data = os.urandom(size)
    path = folder / "data.bin"
    path.write_bytes(data)
    path.chmod(0o640)
    rows, octets, end = await get(path)
    status = path.stat()
    assert rows == [{"path": str(path), "size": size, "mode": "0640", "mtime": pytest.approx(status.st_mtime)}]
    assert octets == data
    assert json.loads(end.payload) == {"size": size, "sha256": hashlib.sha256(data).hexdigest()}


async def test_get_from_an_offset_on(get: Call, folder: Path) -> None:
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


async def test_get_waits_for_credit_and_holds_no_file(gateway: Gateway, agent_process: Any, tmp_path: Path) -> None:
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
async def test_a_file_that_changes_while_it_is_read(
    link: Link, folder: Path, change: Callable[[Path], None], words: str
) -> None:
    """The reader holds the agent in the middle of the file, then the file changes."""
    path = folder / "data.bin"
    path.write_bytes(bytes(MB))
    link.grants = False
    stream = await link.command("c", "file.get", {"path": str(path)})
    await link.until(lambda: stream.room == 0)
    change(path)
    link.grants = True
    await link.send(Credit(id="c", bytes=2 * MB))
    stream.room += 2 * MB
    end = await link.end("c")
    assert error(end).code == "file_changed"
    assert words in error(end).message
    assert str(path) in error(end).message
    assert error(end).temporary


async def test_cancel_in_the_middle_of_a_file(link: Link, folder: Path) -> None:
    (folder / "data.bin").write_bytes(bytes(MB))
    link.grants = False
    stream = await link.command("c", "file.get", {"path": str(folder / "data.bin")})
    await link.until(lambda: stream.room == 0)
    await link.cancel("c")
    assert (await link.end("c")).state == "cancelled"


# -- file.put --------------------------------------------------------------------------------------


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


async def test_put_replaces_at_once(put: Call, link: Link, folder: Path) -> None:
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


async def test_put_that_must_not_replace(put: Call, link: Link, folder: Path) -> None:
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
    assert "parents" in error(end).message
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
async def test_put_of_what_was_not_meant(put: Call, folder: Path, more: dict[str, object], code: str) -> None:
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


async def test_a_put_that_is_cancelled_as_it_begins_leaves_nothing(link: Link, folder: Path) -> None:
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
async def test_a_full_disk(gateway: Gateway, agent_process: Any, folder: Path, condition: str) -> None:
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
        await link.until(lambda: stream.input_room >= 64 << 10 or bool(link.of(End, "c")))
        if link.of(End, "c"):
            break
        await link.feed("c", bytes(64 << 10))
        sent += 64 << 10
    told = error(await link.end("c"))
    assert told.code == "disk_full"
    assert reason in told.message
    assert str(folder / "big") in told.message
    assert 500_000 < int(str(told.details["bytes"])) <= MB
    assert told.temporary
    await link.command("ls", "exec", {"argv": ["ls", "-A", str(folder)]})
    await link.end("ls")
    assert link.output("ls") == b"", "the temporary file was left behind"


# -- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["{root}/../secret", "/etc/hostname", "relative", "", "{root}/a\0b", "{root}/out/secret", "{root}/link",
     "{root}/abs", "{root}/out/nothing-there", "{root}/chain", "{root}/.."],
    ids=["dots", "elsewhere", "relative", "empty", "nul", "linked-folder", "linked-file", "absolute-link",
         "not-even-whether-it-is-there", "chain-of-links", "the-root's-parent"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["get", "put"])
async def test_paths_outside_the_roots(get: Call, put: Call, folder: Path, path: str, method: str) -> None:
    (folder / "out").symlink_to("..")
    (folder / "link").symlink_to("../secret")
    (folder / "abs").symlink_to(folder.parent / "secret")
    (folder / "chain").symlink_to("out/base/link")
    path = path.format(root=folder)
    end = (await get(path))[2] if method == "get" else await put(path, b"overwritten", parents=True)
    told = error(end)
    assert told.code == "path_forbidden"
    assert told.details["path"] == path
    assert (folder.parent / "secret").read_text() == "secret"
    assert sorted(os.listdir(folder.parent)) == ["base", "secret"]


async def test_links_inside_a_root_are_followed(get: Call, put: Call, folder: Path) -> None:
    (folder / "v2").mkdir()
    (folder / "v2" / "config").write_text("two")
    (folder / "current").symlink_to("v2")
    (folder / "alias").symlink_to(folder / "current" / "config")
    (folder / "v2" / "up").symlink_to("../v2/./config")
    assert (await get(folder / "current" / "config"))[1] == b"two"
    assert (await get(folder / "v2" / "up"))[1] == b"two"
    assert (await put(folder / "alias", b"three")).state == "ok"
    assert (folder / "v2" / "config").read_text() == "three"
    assert (folder / "alias").is_symlink()
    assert (await get(folder / "v2" / ".." / "current" / "config"))[1] == b"three"


async def test_a_folder_that_is_exchanged_for_a_link_again_and_again(get: Call, folder: Path) -> None:
    """A race that somebody on the host would run to get out: whatever is read is never the secret."""
    real, other = folder / "d", folder / "d.other"
    real.mkdir()
    (real / "secret").write_text("harmless")
    other.symlink_to("..")
    exchange = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "a, b = (p.encode() for p in sys.argv[1:])\n"
        "while True:\n    libc.renameat2(-100, a, -100, b, 2)\n"  # RENAME_EXCHANGE: one step, no gap
    )
    attacker = subprocess.Popen([sys.executable, "-c", exchange, str(real), str(other)])
    seen: dict[str, int] = {}
    try:
        for _ in range(300):
            _, octets, end = await get(real / "secret")
            assert octets in (b"harmless", b"")
            code = end.error.code if end.error is not None else "ok"
            seen[code] = seen.get(code, 0) + 1
    finally:
        attacker.kill()
        attacker.wait(20)
    assert seen.keys() <= {"ok", "path_forbidden", "not_found", "file_changed"}
    assert seen.get("ok"), "the attacker never stood on this side"
    assert seen.get("path_forbidden") or seen.get("not_found"), "the attacker never stood on that side"


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "device"])
async def test_what_is_no_file(
    gateway: Gateway, serve: Any, get: Call, put: Call, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "it"
    with socket.socket(socket.AF_UNIX) as listener:
        match kind:
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "socket":
                monkeypatch.chdir(folder)  # the path of a socket has 108 bytes at most
                listener.bind("it")
            case "device":
                path = Path("/dev/null")
                serve(builtin_agent(gateway.url, "edge-2", "token-1"))
                link = await gateway.linked()
                await link.command("c", "file.get", {"path": str(path)})
                assert error(await link.end("c")).code == "not_a_file"
                return
        for end in ((await get(path))[2], await put(path, b"x")):
            assert error(end).code == "not_a_file"
            assert str(path) in error(end).message
    assert leftovers(folder) == []


async def test_what_is_not_there(get: Call, folder: Path) -> None:
    (folder / "file").write_text("")
    (folder / "round").symlink_to("round")
    for path in (folder / "nothing", folder / "no" / "folder", folder / "file" / "below", folder / "round"):
        end = (await get(path))[2]
        assert error(end).code == "not_found", path
        assert str(path) in error(end).message
    assert error((await get(f"{folder}/file/"))[2]).code == "not_a_file"
    assert error((await get(folder / ("x" * 300)))[2]).code == "invalid_arguments"
    assert error((await get(folder / "/".join("y" * 100)))[2]).code in ("not_found", "invalid_arguments")


UNPRIVILEGED = """
import os, sys
from fairlead.agent.builtin import builtin_agent
agent = builtin_agent(sys.argv[1], "edge-1", "token-1")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
agent.run()
"""


async def test_what_the_agents_user_may_not(gateway: Gateway, agent_process: Any) -> None:
    agent_process("-c", UNPRIVILEGED, gateway.url)
    link = await gateway.linked()
    await link.command("g", "file.get", {"path": "/etc/shadow"})
    told = error(await link.end("g"))
    assert told.code == "permission_denied"
    assert "/etc/shadow" in told.message
    await link.command("p", "file.put", {"path": "/etc/fairlead-test"})
    await link.feed_end("p")
    assert error(await link.end("p")).code == "permission_denied"


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("file.get", {}),
        ("file.get", {"path": 1}),
        ("file.get", {"path": "/x", "offset": -1}),
        ("file.put", {"path": "/x", "mode": "rw"}),
        ("file.put", {"path": "/x", "sha256": "abc"}),
        ("file.put", {"path": "/x", "size": -1}),
        ("file.put", {"path": "/x", "force": True}),
    ],
)
async def test_wrong_arguments(link: Link, method: str, arguments: dict[str, object]) -> None:
    await link.command("c", method, arguments)
    ack = await link.expect(Ack, "c")
    assert ack.state == "refused"
    assert ack.error is not None
    assert ack.error.code == "invalid_arguments"


async def test_many_transfers_at_once(link: Link, folder: Path) -> None:
    """More than there are threads: all are served."""
    for n in range(24):
        (folder / str(n)).write_bytes(bytes([n]) * 100_000)
        await link.command(f"c{n}", "file.get", {"path": str(folder / str(n))})
    async with asyncio.timeout(20):
        for n in range(24):
            assert (await link.end(f"c{n}")).state == "ok"
            assert link.output(f"c{n}", "file") == bytes([n]) * 100_000
