"""One `fairlead serve` as a process, on ports that it finds itself, as the tests of several rooms start it.

Its log is a file, which says when it is ready and on which ports: a pipe that nobody reads would stop it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

READY = re.compile(r"(?:is|are) ready: links on ([\d.]+:\d+), api on ([\d.]+:\d+), admin on ([\d.]+:\d+)")
TIMEOUT = 60.0
"""Seconds, far more than it takes: the machine may be busy with other tests."""


class ServeProcess:
    """Started at once; `link`, `api` and `admin` are its URLs once it is ready. `program` are the interpreter's
    arguments that run the command line."""

    def __init__(
        self, folder: Path, name: str, redis: str, *flags: str, program: tuple[str, str] = ("-m", "fairlead")
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen(
                [
                    sys.executable, *program, "serve", "--node", name, "--redis", redis,
                    "--link-port=0", "--api-port=0", "--admin-port=0", *flags,
                ],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip
        self.link = self.api = self.admin = ""

    def wait_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not (found := READY.search(self.log())):
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        self.link, self.api, self.admin = f"ws://{found[1]}", f"http://{found[2]}", f"http://{found[3]}"

    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> int:
        """Ask it to end, and kill it if it does not; returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
