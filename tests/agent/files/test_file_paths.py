"""The roots of file transfers: paths outside them, links, special files, and missing permissions."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.wire.messages import Ack

from support.agent.fixtures import Serve, StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.agent.transfers import Call, error, leftovers


@pytest.mark.parametrize(
    "path",
    ["{root}/../secret", "/etc/hostname", "relative", "", "{root}/a\0b", "{root}/out/secret", "{root}/link",
     "{root}/abs", "{root}/out/nothing-there", "{root}/chain", "{root}/.."],
    ids=["dots", "elsewhere", "relative", "empty", "nul", "linked-folder", "linked-file", "absolute-link",
         "not-even-whether-it-is-there", "chain-of-links", "the-root's-parent"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["get", "put"])
async def test_paths_outside_the_roots_are_refused(get: Call, put: Call, folder: Path, path: str, method: str) -> None:
    (folder / "out").symlink_to("..")
    (folder / "link").symlink_to("../secret")
    (folder / "abs").symlink_to(folder.parent / "secret")
    (folder / "chain").symlink_to("out/base/link")
    path = path.format(root=folder)
    end = (await get(path))[2] if method == "get" else await put(path, b"overwritten", parents=True)
    failure = error(end)
    assert failure.code == "path_forbidden"
    assert failure.details["path"] == path
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


async def test_a_folder_that_is_swapped_for_a_link_does_not_lead_outside_the_roots(get: Call, folder: Path) -> None:
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
        async with asyncio.timeout(40):  # the attacker may come late on a busy machine
            while sum(seen.values()) < 300 or not (seen.get("ok") and seen.keys() & {"path_forbidden", "not_found"}):
                _, octets, end = await get(real / "secret")
                assert octets in (b"harmless", b"")
                code = end.error.code if end.error is not None else "ok"
                seen[code] = seen.get(code, 0) + 1
    finally:
        attacker.kill()
        attacker.wait(20)
    assert seen.keys() <= {"ok", "path_forbidden", "not_found", "file_changed"}


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "device"])
async def test_a_path_that_is_not_a_regular_file_is_refused(
    gateway: Gateway, serve: Serve, get: Call, put: Call, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
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


async def test_a_missing_file_or_folder_is_reported(get: Call, folder: Path) -> None:
    (folder / "file").write_text("")
    (folder / "round").symlink_to("round")
    for path in (folder / "nothing", folder / "no" / "folder", folder / "file" / "below", folder / "round"):
        end = (await get(path))[2]
        assert error(end).code == "not_found", path
        assert "parents=true" not in error(end).message, "nobody wants to make folders in order to read"
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


async def test_a_path_without_permission_is_reported(gateway: Gateway, agent_process: StartAgentProcess) -> None:
    agent_process("-c", UNPRIVILEGED, gateway.url)
    link = await gateway.linked()
    await link.command("g", "file.get", {"path": "/etc/shadow"})
    failure = error(await link.end("g"))
    assert failure.code == "permission_denied"
    assert "/etc/shadow" in failure.message
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
async def test_invalid_arguments_are_refused(link: Link, method: str, arguments: dict[str, object]) -> None:
    await link.command("c", method, arguments)
    ack = await link.expect(Ack, "c")
    assert ack.state == "refused"
    assert ack.error is not None
    assert ack.error.code == "invalid_arguments"
