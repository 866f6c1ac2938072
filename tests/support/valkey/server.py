"""A Valkey process on loopback with a password, which tests kill, freeze and start again."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redis.asyncio.client import Redis

from fairlead.store.embedded_valkey.binary import find_binary

from support.free_ports import free_port
from support.valkey.network import Network

PASSWORD = "password-of-the-data"
WRITES_AT_ONCE = ("--appendfsync", "no")
"""Options with which a killed server has in its file all that it has answered. With an fsync each second that is so on
a fast disk alone: while an fsync takes long, the server puts off the next write by up to two seconds."""


class ValkeyServer:
    """`options` follow those that every server of the tests has."""

    def __init__(
        self, folder: Path, options: Sequence[str] = (), *, password: str = PASSWORD, network: Network | None = None
    ) -> None:
        """With a `network`, others reach the server over a line of it, whose port the server announces."""
        self.folder = folder
        self.port = free_port()
        self.network = network
        self.public_port = self.port
        """The port by which others know the server. Tests call it by `port` all the time."""
        self.host = ""
        """The address from which it connects to others in a network."""
        self.password = password
        self._options = tuple(options)
        if network is not None:
            self.host, self.public_port = network.new_host(), network.line(self.port).port
            announced = ("--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(self.public_port))
            self._options = ("--bind-source-addr", self.host, *announced, *self._options)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.public_port}"

    @property
    def ports(self) -> tuple[int, ...]:
        """Those at which others connect."""
        return (self.port,)

    def command(self) -> list[str]:
        return [
            str(find_binary()), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
            "--requirepass", self.password, "--primaryauth", self.password, "--appendonly", "yes",
            "--save", "", "--repl-diskless-sync-delay", "0", *self._options,
        ]  # fmt: skip

    async def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            # Signals stay as they are in Python: a file that may not grow is an error of `write`, and no SIGXFSZ.
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, restore_signals=False
            )
        async with asyncio.timeout(30):
            while True:
                try:
                    await self.call("PING")
                    return
                except Exception:
                    assert self._process.poll() is None, (self.folder / "log").read_text()[-1_000:]
                    await asyncio.sleep(0.02)

    async def call(self, *args: str | int) -> Any:
        client = Redis(host="127.0.0.1", port=self.port, password=self.password, socket_timeout=5, protocol=2)
        try:
            return await client.execute_command(*args)  # type: ignore[no-untyped-call]
        finally:
            await client.aclose()

    async def has_all_of(self, primary: ValkeyServer) -> bool:
        """Whether this replica has all that the primary has now. (`WAIT` on a connection that has written nothing waits
        for nothing.)"""
        offset = (await primary.info("replication"))["master_repl_offset"]
        own = await self.info("replication")
        return bool(own["master_link_status"] == "up" and own["slave_repl_offset"] >= offset)

    async def info(self, section: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.call("INFO", section)
        return found

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def limit_files(self, size: int | None) -> None:
        """Let no file of the server grow beyond `size` bytes, as if its disk was full; None ends that."""
        unlimited = resource.RLIM_INFINITY
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (unlimited if size is None else size, unlimited))

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(10)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None and self.running:
            self._process.kill()  # a frozen one ends as well
            self._process.wait(10)
