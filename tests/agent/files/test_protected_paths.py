"""Paths that the platform can never reach: the agent's own files and, with exec.allow, what the allowed programs
depend on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.agent.builtin.files.protected_paths import (
    ProtectedPath,
    conflicts,
    program_paths,
    resolve_links,
    unit_paths,
)
from fairlead.agent.builtin.options import ExecOptions, FileOptions, Options, ShellOptions
from fairlead.errors import ConfigError
from fairlead.wire.messages import Ack

from support.agent.fixtures import Serve, StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.agent.transfers import MB, WINDOW, Call, error, leftovers

TOKEN = "a-token-that-nobody-may-see"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Where data may be on every host: TMPDIR may lie in a folder that is guarded itself, as /dev/shm and /root do."""
    with TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


# -- the agent's own -------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What belongs to the agent: its token, which is a link as in Kubernetes, its configuration and its journal."""
    home = tmp_path / "etc"
    (home / "..data").mkdir(parents=True)
    (home / "..data" / "token").write_text(TOKEN)
    (home / "token").symlink_to("..data/token")
    (home / "agent.toml").write_text(f"token_file = '{home}/token'\njournal = '{home}/journal'\n")
    return home


@pytest.fixture
async def link(gateway: Gateway, agent_process: StartAgentProcess, home: Path) -> Link:
    """`fairlead agent run` with the default roots, which are /."""
    process = agent_process(
        "-c", "import os; del os.environ['FAIRLEAD_AGENT_TOKEN']; from fairlead.cli.main import main; main()",
        "agent", "run", "--config", str(home / "agent.toml"), "--url", gateway.url, "--id", "edge-1",
    )  # fmt: skip
    link = await gateway.linked(window=WINDOW)
    assert "built-in methods: exec, facts.refresh, file.get, file.put" in process.log
    return link


OWN = ["token", "..data/token", "agent.toml", "journal/lock", "journal/../token", "journal/none", "hard", "soft",
       "renamed/token", "folder-link/token"]  # fmt: skip


@pytest.mark.parametrize("path", OWN)
@pytest.mark.parametrize("method", ["get", "put"])
async def test_the_agents_own_files_are_neither_read_nor_written(
    get: Call, put: Call, home: Path, path: str, method: str
) -> None:
    (home / "folder-link").symlink_to(".")
    (home / "soft").symlink_to(home / "token")
    os.link(home / "..data" / "token", home / "hard")
    if path.startswith("renamed"):
        (home / "..data").rename(home / "renamed")
    before = {file.name: file.lstat().st_ino for file in home.iterdir()}
    if method == "get":
        _, octets, end = await get(home / path)
        assert octets == b""
    else:
        end = await put(home / path, b"mine", parents=True)
    assert error(end).code == "path_forbidden"
    assert "which the platform cannot access" in error(end).message
    assert {file.name: file.lstat().st_ino for file in home.iterdir()} == before
    assert leftovers(home) == leftovers(home / "journal") == []


async def test_no_folder_is_made_below_a_protected_path(put: Call, home: Path) -> None:
    assert error(await put(home / "journal" / "a" / "b" / "c", b"x", parents=True)).code == "path_forbidden"
    assert not (home / "journal" / "a").exists()


async def test_a_token_file_that_does_not_exist_yet_is_protected_by_its_name(put: Call, home: Path) -> None:
    """As while it is replaced: whoever put one there would choose what the agent says next."""
    (home / "token").unlink()
    assert error(await put(home / "token", b"mine")).code == "path_forbidden"
    assert (await put(home / "other", b"x")).state == "ok", "what lies beside it is nobody's"
    (home / "token").write_text("rotated")
    assert error(await put(home / "token", b"mine")).code == "path_forbidden"


async def test_a_path_that_is_swapped_for_the_token_does_not_reveal_it(get: Call, put: Call, home: Path) -> None:
    """A race that somebody on the host would run: a file and a hard link to the token change places."""
    (home / "a").write_text("harmless")
    os.link(home / "..data" / "token", home / "b")
    exchange = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "a, b = (p.encode() for p in sys.argv[1:])\n"
        "while True:\n    libc.renameat2(-100, a, -100, b, 2)\n"  # RENAME_EXCHANGE: one step, no gap
    )
    attacker = subprocess.Popen([sys.executable, "-c", exchange, str(home / "a"), str(home / "b")])
    seen: dict[str, int] = {}
    try:
        async with asyncio.timeout(40):
            while sum(seen.values()) < 200 or not (seen.get("ok") and seen.get("path_forbidden")):
                _, octets, end = await get(home / "a")
                assert octets in (b"harmless", b"")
                code = end.error.code if end.error is not None else "ok"
                seen[code] = seen.get(code, 0) + 1
    finally:
        attacker.kill()
        attacker.wait(20)
    assert (home / "..data" / "token").read_text() == TOKEN


async def test_folders_that_are_moved_during_a_put_leave_nothing(link: Link, tmp_path: Path) -> None:
    """What was walked to is not where the path leads any more: nothing is kept."""
    (tmp_path / "up" / "in").mkdir(parents=True)
    stream = await link.command("p", "file.put", {"path": str(tmp_path / "up" / "in" / "file")})
    await link.feed("p", b"data")
    await link.until(lambda: bool(leftovers(tmp_path / "up" / "in")))
    (tmp_path / "up").rename(tmp_path / "away")
    (tmp_path / "up" / "in").mkdir(parents=True)
    await link.feed_end("p")
    assert error(await link.end("p")).code == "path_forbidden"
    assert stream.input_next == 1
    assert os.listdir(tmp_path / "away" / "in") == os.listdir(tmp_path / "up" / "in") == []


def test_the_systemd_unit_of_the_agent_is_protected() -> None:
    guarded = {one.path: one for one in unit_paths("0::/system.slice/fairlead-agent.service\n")}
    assert guarded["/etc/systemd/system/fairlead-agent.service"].secret
    assert guarded["/etc/systemd/system/fairlead-agent.service.d"].whole
    assert unit_paths("0::/\n") == unit_paths("0::/user.slice/user-0.slice/session-1.scope\n") == []


# -- with an allow list ----------------------------------------------------------------------------


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """A script in a folder of its own, called through a link, with an interpreter elsewhere."""
    (tmp_path / "tools" / "v2").mkdir(parents=True)
    (tmp_path / "tools" / "current").symlink_to("v2")
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "sh").symlink_to("/bin/sh")
    script = tmp_path / "tools" / "v2" / "tool"
    script.write_text(f"#!{tmp_path}/runtime/sh\necho genuine\n")
    script.chmod(0o755)
    return tmp_path / "tools" / "current" / "tool"


def options(tool: Path, *roots: Path | str, **more: Any) -> Options:
    return Options(exec=ExecOptions(allow=(str(tool),)), file_put=FileOptions(roots=tuple(map(str, roots))), **more)


@pytest.mark.parametrize(
    "root",
    ["", "tools", "tools/v2", "tools/v2/tool", "tools/current", "tools/v2/data", "runtime", "link-to-tools", "own",
     "/", "/usr", "/usr/bin", "/usr/lib", "/usr/local/lib", "/etc", "/etc/cron.d", "/etc/systemd/system", "/root",
     "/lib", "/var/spool", "/proc", sys.prefix, str(Path(__file__).parent.parent.parent.parent / "gateway")],
)  # fmt: skip
def test_a_root_that_would_bypass_exec_allow_is_refused(tool: Path, tmp_path: Path, root: str) -> None:
    (tmp_path / "link-to-tools").symlink_to("tools")
    (tmp_path / "own").mkdir()
    where = root if root.startswith("/") else str(tmp_path / root)
    with pytest.raises(ConfigError, match=r"exec.allow could be bypassed") as refused:
        builtin_agent("ws://127.0.0.1:1", "a", "t", options=options(tool, "/srv/incoming", where),
                      private=[tmp_path / "own" / "agent.toml"])  # fmt: skip
    assert f"file_put.roots: {where} contains or lies in" in refused.value.message
    assert "/srv/incoming" not in refused.value.message


@pytest.mark.parametrize("way", ["working directory", "PYTHONPATH"])
def test_a_writable_root_that_the_agent_loads_modules_from_is_refused(tool: Path, tmp_path: Path, way: str) -> None:
    """A module that is put there would be the agent itself at its next start."""
    data = tmp_path / "data"
    data.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {"PATH": "/usr/bin:/bin", "FAIRLEAD_AGENT_TOKEN": "t", "FAIRLEAD_AGENT_EXEC_ALLOW": str(tool)}
    if way == "PYTHONPATH":
        environment["PYTHONPATH"] = str(data)
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "agent", "run", "--id", "a", "--url", "ws://127.0.0.1:1"],
        env={**environment, "FAIRLEAD_AGENT_FILE_PUT_ROOTS": str(data)},
        cwd=data if way == "working directory" else elsewhere,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert (
        f"file_put.roots: {data} contains or lies in {data} (a folder that the agent loads modules from)" in done.stderr
    )


def test_roots_that_hold_only_data_are_accepted(tool: Path, tmp_path: Path) -> None:
    for root in ("/srv/incoming", "/var/www", "/etc/nginx/conf.d", tmp_path / "data"):
        builtin_agent(
            "ws://127.0.0.1:1", "a", "t", options=options(tool, root), private=[Path("/etc/fairlead/agent.toml")]
        )


@pytest.mark.parametrize(
    ("argv", "fits"),
    [(None, False), (("/bin/sh", "-l"), False), (("tool",), False), (("{tool}",), True), (("{tool}", "-x"), True)],
)
def test_a_shell_that_would_bypass_exec_allow_is_refused(tool: Path, argv: tuple[str, ...] | None, fits: bool) -> None:
    given = None if argv is None else tuple(word.format(tool=tool) for word in argv)
    chosen = Options(exec=ExecOptions(allow=(str(tool),)), shell=ShellOptions(enabled=True, argv=given))
    if fits:
        builtin_agent("ws://127.0.0.1:1", "a", "t", options=chosen)
    else:
        with pytest.raises(ConfigError, match=r"shell.enabled: a terminal runs any program"):
            builtin_agent("ws://127.0.0.1:1", "a", "t", options=chosen)


async def test_exec_allow_alone_disables_shell_and_file_put(gateway: Gateway, serve: Serve, tool: Path) -> None:
    serve(builtin_agent(gateway.url, "edge-1", "token-1", options=Options(exec=ExecOptions(allow=(str(tool),)))))
    link = await gateway.linked()
    for method in ("file.put", "shell"):
        await link.command(method, method, {"path": "/x"} if method == "file.put" else {})
        refused = (await link.expect(Ack, method)).error
        assert refused is not None
        assert refused.code == "unknown_method"
        assert "exec.allow" in refused.message
    await link.command("x", "exec", {"argv": [str(tool)]})
    assert json.loads((await link.end("x")).payload) == {"exit_code": 0}
    assert link.output("x") == b"genuine\n"


async def test_an_allowed_program_cannot_be_replaced_through_file_put(
    gateway: Gateway, serve: Serve, tool: Path, tmp_path: Path, make_put: Callable[[Link], Call]
) -> None:
    """The roots held data alone when the agent started; then somebody moved the tools into one of them."""
    (tmp_path / "data").mkdir()
    serve(builtin_agent(gateway.url, "edge-1", "token-1", options=options(tool, tmp_path / "data")))
    link = await gateway.linked(window=WINDOW)
    put = make_put(link)
    assert (await put(tmp_path / "data" / "file", b"x")).state == "ok"
    (tmp_path / "tools").rename(tmp_path / "data" / "tools")
    for name in ("tool", "other", "sub/other"):
        end = await put(tmp_path / "data" / "tools" / "v2" / name, b"#!/bin/sh\necho replaced\n", parents=True)
        assert error(end).code == "path_forbidden", name
    assert os.listdir(tmp_path / "data" / "tools" / "v2") == ["tool"]


@pytest.mark.parametrize("mode", ["4755", "2755", "1777", "6755", "7777"])
async def test_setuid_setgid_and_sticky_bits_are_refused(put: Call, tmp_path: Path, mode: str) -> None:
    end = await put(tmp_path / "file", b"x" * MB, mode=mode)
    assert error(end).code == "invalid_arguments"
    assert f"0{mode[1:]}" in error(end).message
    assert not (tmp_path / "file").exists()
    assert (await put(tmp_path / "file", b"x", mode=f"0{mode[1:]}")).state == "ok"


# -- pure ------------------------------------------------------------------------------------------


def test_links_on_the_way_to_a_file_are_resolved(tmp_path: Path) -> None:
    top = os.path.realpath(tmp_path)
    (tmp_path / "v2").mkdir()
    (tmp_path / "current").symlink_to("v2")
    (tmp_path / "abs").symlink_to(f"{top}/current")
    assert resolve_links(f"{top}/abs/../v2/./tool") == [f"{top}/abs", f"{top}/current", f"{top}/v2/tool"]
    (tmp_path / "round").symlink_to("round")
    assert len(resolve_links(f"{top}/round/x")) <= 42


def test_interpreters_of_an_allowed_script_are_protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    interpreter = tmp_path / "bin" / "lua"
    interpreter.write_text("")
    interpreter.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    script = tmp_path / "tool"
    script.write_text("#!/usr/bin/env -S LC_ALL=C lua -x\n")
    assert {"/usr/bin/env", str(interpreter), str(script)} <= {one.path for one in program_paths([str(script)])}


def test_a_root_above_or_below_a_protected_path_conflicts() -> None:
    file, whole = ProtectedPath("/a/b/file", "f"), ProtectedPath("/x/y", "w", whole=True)
    assert list(conflicts("/a", [file, whole])) == [file]
    assert list(conflicts("/a/b/file", [file])) == [file]
    assert list(conflicts("/a/b/file2", [file])) == list(conflicts("/a/b/file/x", [file])) == []
    assert list(conflicts("/x/y/z", [whole])) == list(conflicts("/x", [whole])) == [whole]
    assert list(conflicts("/x/yz", [whole])) == []
    assert list(conflicts("/", [file, whole])) == [file, whole]
