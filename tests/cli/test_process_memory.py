"""What a node gives back to the operating system when connections have ended."""

from __future__ import annotations

import asyncio
import platform
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.cli.serve import process_memory
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.carrier.tls_site import make_certificate
from support.gateway_process import ServeProcess
from support.waiting import wait_until

CONNECTIONS = 400
"""One address may have 500 without a token. They are open for 10 s at most."""
MIB = 1 << 20

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")


@contextmanager
def connected(port: int, certificate: Path) -> Iterator[None]:
    """So many connections over TLS, all of which were in their handshakes at once."""
    trust = ssl.create_default_context(cafile=str(certificate))
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(CONNECTIONS)]
        begun = [
            stack.enter_context(trust.wrap_socket(one, server_hostname="localhost", do_handshake_on_connect=False))
            for one in sockets
        ]
        for one in begun:
            with suppress(OSError):  # on a slow machine, the node may have closed the last ones
                one.do_handshake()
        yield


@pytest.fixture
def node(tmp_path: Path, valkey: EmbeddedValkey) -> Iterator[ServeProcess]:
    """It gives memory back every 0.2 s instead of every minute."""
    source = (
        "from fairlead.cli.serve import process_memory as m; m.PERIOD = 0.2; from fairlead.cli.main import cli; cli()"
    )
    certificate, key = make_certificate(tmp_path, "localhost")
    tls = f"--link-tls-cert={certificate}", f"--link-tls-key={key}"
    started = ServeProcess(tmp_path, "returning", valkey.url, *tls, program=("-c", source))
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


def test_a_node_gives_back_what_ended_connections_leave_between_blocks_in_use(
    node: ServeProcess, tmp_path: Path
) -> None:
    process, port = psutil.Process(node.pid), int(node.link.rpartition(":")[2])
    with connected(port, tmp_path / "localhost.pem"):
        held = process.memory_info().rss
    # Without `return_memory`, nothing of it is given back: the top of the heap is in use.
    wait_until(lambda: process.memory_info().rss < held - 3 * MIB)
    assert node.stop() == 0


class ThreadlessExecutor(ThreadPoolExecutor):
    """What the default executor is while the system starts no further thread."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_again = asyncio.Event()
        self._asked = 0

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        self._asked += 1
        if self._asked > 1:
            self.asked_again.set()
        raise RuntimeError("can't start new thread")


async def test_a_node_serves_on_when_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "PERIOD", 0.001)
    executor = ThreadlessExecutor()
    asyncio.get_running_loop().set_default_executor(executor)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        returning = group.create_task(process_memory.return_memory())
        await executor.asked_again.wait()
        returning.cancel()
