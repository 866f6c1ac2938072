from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from fairlead.errors import ConfigError
from fairlead.store.embedded import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.server import check_server

Connect = Callable[[str], Awaitable[Pipeliner]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]

PARENT = """
import asyncio, pathlib, sys
from fairlead.store.embedded import EmbeddedValkey

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


async def test_it_is_fit_to_hold_a_fleet(pipeliner: Pipeliner, caplog: pytest.LogCaptureFixture) -> None:
    facts = await check_server(pipeliner)
    assert (facts.product, facts.eviction, facts.append_only) == ("valkey", "noeviction", True)
    assert int(facts.version.split(".")[0]) >= 9
    assert caplog.text == ""


async def test_data_outlive_an_orderly_restart_on_the_same_port(own_valkey: EmbeddedValkey, connect: Connect) -> None:
    await (await connect(own_valkey.url)).submit("SET", "key", "value")
    port, pid = own_valkey.port, own_valkey.pid
    await own_valkey.restart()
    assert own_valkey.port == port
    assert own_valkey.pid != pid
    assert await (await connect(own_valkey.url)).submit("GET", "key") == b"value"


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
            await EmbeddedValkey(tmp_path, port).start()


async def test_the_port_of_another_valkey_is_not_taken_for_ours(valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is taken"):
        await EmbeddedValkey(tmp_path, valkey.port).start()


async def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is not usable"):
        await EmbeddedValkey(tmp_path / "file").start()


async def test_a_server_that_ends_at_its_start_shows_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"valkey\.log says: (?s:.*)no-such-option"):
        await EmbeddedValkey(tmp_path, options=["--no-such-option", "1"]).start()
    async with EmbeddedValkey(tmp_path):  # and it leaves the folder free
        pass


async def test_it_listens_on_loopback_or_on_a_socket_only_its_user_can_open(
    tmp_path: Path, connect: Connect, valkey: EmbeddedValkey
) -> None:
    def listening(pid: int) -> set[str]:
        connections = psutil.Process(pid).net_connections("inet")
        return {c.laddr.ip for c in connections if c.laddr and c.status == psutil.CONN_LISTEN}

    assert listening(valkey.pid) == {"127.0.0.1"}
    path = tmp_path / "socket"
    async with EmbeddedValkey(tmp_path / "data", socket_path=path) as server:
        assert listening(server.pid) == set()
        assert path.stat().st_mode & 0o777 == 0o700
        assert await (await connect(server.url)).submit("PING") == b"PONG"


async def test_ctrl_c_at_the_terminal_does_not_reach_it(valkey: EmbeddedValkey) -> None:
    assert os.getsid(valkey.pid) != os.getsid(0)
    assert os.getpgid(valkey.pid) != os.getpgid(0)


async def test_stopping_a_stopped_server_is_nothing(tmp_path: Path, until: Until) -> None:
    server = EmbeddedValkey(tmp_path)
    await server.stop()
    await server.start()
    os.kill(server.pid, signal.SIGKILL)
    await until(lambda: not server.running)
    await server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
async def test_it_does_not_outlive_a_killed_parent(tmp_path: Path, until: Until) -> None:
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
