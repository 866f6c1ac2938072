"""One `fairlead serve` that a test starts, signals, stops and starts again on the same ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

READY = re.compile(r"(?:is|are) ready: links on ([\d.]+:\d+), api on ([\d.]+:\d+), admin on ([\d.]+:\d+)")


TIMEOUT = 60.0


class GatewayProcess:
    """One `fairlead serve`."""

    def __init__(
        self,
        folder: Path,
        redis: str,
        flags: tuple[str, ...] = (),
        name: str = "node-1",
        files: int = 0,
        within: tuple[str, ...] = (),
    ) -> None:
        """`files`: how many it may open, 0 for the machine's limit. `within`: a command that runs it."""
        self.folder = folder
        self._redis = redis
        self.flags = flags
        self.name = name
        self._within = ("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh") if files else within
        self._ports = ("0", "0", "0")
        self._process: subprocess.Popen[bytes] | None = None
        self.link = self.api = self.admin = ""

    def start(self) -> None:
        """Start, or start again on the same ports.

        While it was down, the system may have given one of its ports to an outgoing connection of another test: then it
        is started again until the port is free.
        """
        deadline = time.monotonic() + TIMEOUT
        while not (found := self._start_once(deadline)):
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.5)
        addresses = found.groups()
        self._ports = tuple(a.rpartition(":")[2] for a in addresses)  # type: ignore[assignment]
        self.link, self.api, self.admin = f"ws://{addresses[0]}", f"http://{addresses[1]}", f"http://{addresses[2]}"

    def _start_once(self, deadline: float) -> re.Match[str] | None:
        """What it says when it is ready; None if a port of an earlier start is taken."""
        log = self.folder / f"{self.name}.log"
        with log.open("ab") as sink:
            before = sink.tell()
            self._process = subprocess.Popen(
                [
                    *self._within, sys.executable, "-m", "fairlead", "serve",
                    "--node", self.name, "--redis", self._redis,
                    "--link-port", self._ports[0], "--api-port", self._ports[1], "--admin-port", self._ports[2],
                    "--data", str(self.folder / "data"), *self.flags,
                ],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip
        while not (found := READY.search(self.log(before))):
            if self._process.poll() is not None and self.link and "Address already in use" in self.log(before):
                return None
            assert self._process.poll() is None, self.log(before)
            assert time.monotonic() < deadline, self.log(before)
            time.sleep(0.02)
        return found

    def log(self, start: int = 0) -> str:
        return (self.folder / f"{self.name}.log").read_bytes()[start:].decode()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """The exit code."""
        assert self._process is not None
        return self._process.wait(timeout)

    def stop(self) -> None:
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.wait(10)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.wait()


class MakeGateway(Protocol):
    def __call__(
        self, redis: str, *flags: str, name: str = ..., files: int = ..., within: tuple[str, ...] = ...
    ) -> GatewayProcess: ...
