"""`fairlead swarm` as a process: simulated agents that connect to a real gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

TIMEOUT = 60.0


class Swarm:
    """One `fairlead swarm -o json`. Its standard error grows in a file that a test may watch."""

    def __init__(self, url: str, folder: Path, *flags: str) -> None:
        self._err = folder / f"swarm-{time.monotonic_ns()}.err"
        with self._err.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairlead", "swarm", "--url", url, "-o", "json", *flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink,
                env={**os.environ, "FAIRLEAD_AGENT_TOKEN": ""},
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._err.read_text()

    def until_holding(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while "holding:" not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def result(self, timeout: float = TIMEOUT) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=timeout)
        assert out, self.log
        found: dict[str, Any] = json.loads(out)
        return found

    def freeze(self) -> None:
        """Stop it where it is: its agents keep their links, and answer nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for one in [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]:
            one.send_signal(number)
