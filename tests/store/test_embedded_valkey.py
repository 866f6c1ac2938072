from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from fairlead.errors import ConfigError
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.servers.server_check import check_server

from support.waiting import until

Connect = Callable[[str], Awaitable[Pipeliner]]

PARENT = """
import asyncio, pathlib, sys
from fairlead.store.embedded_valkey.server import EmbeddedValkey

async def main():
    server = EmbeddedValkey(pathlib.Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_embedded_valkey_passes_the_server_check(pipeliner: Pipeliner, caplog: pytest.LogCaptureFixture) -> None:
    facts = await check_server(pipeliner)
    assert (facts.product, facts.eviction, facts.append_only) == ("valkey", "noeviction", True)
    assert int(facts.version.split(".")[0]) >= 9
    assert caplog.text == ""


@pytest.mark.parametrize("port", [None, 0])
async def test_data_survive_an_orderly_restart_at_the_same_url(
    tmp_path: Path, connect: Connect, port: int | None
) -> None:
    async with EmbeddedValkey(tmp_path, port=port) as server:
        await (await connect(server.url)).submit("SET", "key", "value")
        url, pid = server.url, server.pid
        await server.restart()
        assert server.url == url
        assert server.pid != pid
        assert await (await connect(url)).submit("GET", "key") == b"value"


async def test_a_folder_serves_one_server_only(own_valkey: EmbeddedValkey) -> None:
    second = EmbeddedValkey(own_valkey.folder)
    with pytest.raises(ConfigError, match=f"in use by another server \\(process {own_valkey.pid}\\)"):
        await second.start()
    assert not second.running
    assert own_valkey.running


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} of 127\.0\.0\.1 is taken"):
            await EmbeddedValkey(tmp_path, port=port).start()


async def test_a_port_used_by_another_valkey_is_refused(tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path / "one", port=0) as other:
        with pytest.raises(ConfigError, match="is taken"):
            await EmbeddedValkey(tmp_path / "two", port=other.port).start()


async def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is not usable"):
        await EmbeddedValkey(tmp_path / "file").start()
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="link is not usable"):
        await EmbeddedValkey(tmp_path / "link").start()
    assert not (tmp_path / "valkey.lock").exists()


async def test_a_server_that_ends_at_its_start_shows_its_last_log_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"valkey\.log says: (?s:.*)no-such-option"):
        await EmbeddedValkey(tmp_path, options=["--no-such-option", "1"]).start()
    async with EmbeddedValkey(tmp_path):  # and it leaves the folder free
        pass


def listening(pid: int) -> set[str]:
    connections = psutil.Process(pid).net_connections("inet")
    return {c.laddr.ip for c in connections if c.laddr and c.status == psutil.CONN_LISTEN}


def modes(folder: Path) -> dict[str, int]:
    """The modes of the folder and its files, except files that vanish during the listing: the server renames new
    files."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.lstat().st_mode & 0o777
    return found


async def test_only_its_user_can_open_its_socket_and_read_its_files(tmp_path: Path, connect: Connect) -> None:
    folder = tmp_path / "data"
    folder.mkdir(0o755)
    folder.chmod(0o755)  # whatever the umask is
    async with EmbeddedValkey(folder) as server:
        assert listening(server.pid) == set()
        store = await connect(server.url)
        await store.submit("SET", "key", "value")
        await store.submit("BGREWRITEAOF")  # the files that come later too
        found = modes(folder)
    assert found.pop("data") == found.pop("appendonlydir") == 0o700
    assert {"valkey.sock", "valkey.log", "valkey.lock", "appendonly.aof.1.incr.aof"} <= set(found)
    assert set(found.values()) == {0o600}


async def test_on_tcp_it_binds_the_loopback_and_requires_a_password(tmp_path: Path, connect: Connect) -> None:
    async with EmbeddedValkey(tmp_path, port=0) as server, EmbeddedValkey(tmp_path / "two", port=0) as two:
        assert listening(server.pid) == {"127.0.0.1"}
        password = urlsplit(server.url).password
        assert password is not None
        assert len(password) >= 32
        assert password != urlsplit(two.url).password
        assert not [word for word in psutil.Process(server.pid).cmdline() if password in word]
        assert await (await connect(server.url)).submit("PING") == b"PONG"
        stranger = Pipeliner(f"redis://127.0.0.1:{server.port}")
        stranger.start()
        try:
            assert not await stranger.wait_available(0.5)
            assert "password" in stranger.last_error.message
        finally:
            await stranger.aclose()
        assert set(modes(tmp_path).values()) == {0o600, 0o700}


NOBODY = 65534
ATTEMPT = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
where = sys.argv[2]
try:
    if where.isdigit():
        one = socket.socket()
        one.connect((b"127.0.0.1", int(where)))  # bytes: this user may be unable to read Python's codecs
    else:
        one = socket.socket(socket.AF_UNIX)
        one.connect(where)
    one.sendall(b"EVAL 'return 1' 0\\r\\n")
    print(one.recv(100).decode().strip())
except OSError as e:
    print(type(e).__name__)
"""


def attempt(uid: int, where: str | int) -> str:
    """What another user of the machine gets who runs a script in the server at `where`, a socket or a port."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ATTEMPT, str(uid), str(where)],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_of_the_machine_cannot_connect() -> None:
    # Not in a folder of pytest's: nobody else can enter those, whatever the modes of ours are.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        async with (
            EmbeddedValkey(Path(name) / "one") as server,
            EmbeddedValkey(Path(name) / "two", port=0) as on_tcp,
        ):
            assert attempt(0, server.socket_path) == ":1", "the attempt works for the server's own user"
            assert attempt(NOBODY, server.socket_path) == "PermissionError"
            server.folder.chmod(0o777)  # the socket's own mode keeps others out too
            assert attempt(NOBODY, server.socket_path) == "PermissionError"
            assert "NOAUTH" in attempt(NOBODY, on_tcp.port)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
async def test_the_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="belongs to another user \\(uid 65534\\)"):
        await EmbeddedValkey(tmp_path).start()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["valkey.lock", "valkey.log", "appendonlydir"])
async def test_a_link_in_a_folder_that_was_open_to_others_is_not_followed(tmp_path: Path, name: str) -> None:
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    folder.chmod(0o777)
    (folder / name).symlink_to(elsewhere if name == "appendonlydir" else elsewhere / "file")
    with pytest.raises(ConfigError, match=f"'{name}' in it is a link or belongs to another user"):
        await EmbeddedValkey(folder).start()
    if name != "appendonlydir":  # closed by now, and a link all the same
        with pytest.raises(ConfigError, match="symbolic link"):
            await EmbeddedValkey(folder).start()
    assert [one.name for one in elsewhere.iterdir()] == ["file"]
    assert (elsewhere / "file").read_text() == "precious"


async def test_a_folder_that_anybody_may_replace_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(ConfigError, match=r"because .*/parent is writable for all"):
        await EmbeddedValkey(parent / "data").start()
    parent.chmod(0o1777)  # as /tmp: only a folder's owner may rename it there
    async with EmbeddedValkey(parent / "data"):
        pass


@pytest.mark.parametrize("name", ["x" * 200, "50 % off? #1"])
async def test_a_folder_may_have_any_path(tmp_path: Path, connect: Connect, name: str) -> None:
    server = EmbeddedValkey(tmp_path / name)
    await server.start()
    try:
        path, url = Path(server.socket_path), server.url
        await (await connect(url)).submit("SET", "key", "value")
        await server.restart()
        assert server.url == url
        assert await (await connect(url)).submit("GET", "key") == b"value"
        assert (tmp_path / name / "valkey.sock").is_socket()
    finally:
        await server.stop()
    assert not path.exists()
    if len(name) == 200:
        assert not path.parent.parent.exists(), "the short way to it is gone with it"
    assert list((tmp_path / name).glob("appendonlydir/*.aof"))


async def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path, connect: Connect) -> None:
    async with EmbeddedValkey(tmp_path) as server:
        store = await connect(server.url)
        await store.submit("SET", "key", "value")
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: not server.running)
        assert (tmp_path / "valkey.sock").is_socket()
        await server.start()
        store = await connect(server.url)
        assert await store.submit("GET", "key") == b"value"


async def test_ctrl_c_at_the_terminal_does_not_reach_it(valkey: EmbeddedValkey) -> None:
    assert os.getsid(valkey.pid) != os.getsid(0)
    assert os.getpgid(valkey.pid) != os.getpgid(0)


async def test_stopping_a_stopped_server_does_nothing(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    await server.stop()
    await server.start()
    os.kill(server.pid, signal.SIGKILL)
    await until(lambda: not server.running)
    await server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a child at the death of its parent")
async def test_embedded_valkey_ends_with_a_killed_parent(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(20):
        pid = int(await parent.stdout.readline())
    assert not gone(pid)
    parent.kill()
    await parent.wait()
    try:
        await until(lambda: gone(pid))
    finally:
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)
    async with EmbeddedValkey(tmp_path):  # and the folder is free
        pass
