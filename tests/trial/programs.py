"""The programs outside the cluster: the agents of one fleet, and their callers. Started by `run` and by the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.kube import INGRESS, behind
from trial.traffic import END, CallerLog, Pace, read

PROCESSES = 2
"""That have the agents of a fleet."""
RATE = 100.0
"""Agents that connect in a second at the beginning."""
PORT = INGRESS.rpartition(":")[2]


class AgentPrograms:
    """The processes with the agents of one fleet."""

    def __init__(self, host: str, kind: str, agents: int, folder: Path, environment: Mapping[str, str]) -> None:
        self.executions = folder / f"{kind}.book"
        self.executions.touch()
        share = agents // PROCESSES
        self._processes = []
        for number in range(PROCESSES):
            first = number * share
            count = share if number < PROCESSES - 1 else agents - first
            argv = [
                sys.executable, "-m", "trial.agents", kind, f"ws://{host}:{PORT}", str(first), str(count),
                str(RATE / PROCESSES), str(self.executions),
            ]  # fmt: skip
            with (folder / f"{kind}-{number}.log").open("wb") as log:
                started = subprocess.Popen(
                    behind(folder / "hosts", [host], *argv),
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._processes.append(started)

    def alive(self) -> bool:
        return all(process.poll() is None for process in self._processes)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def runs(self) -> Mapping[str, int]:
        """How often each command was begun."""
        counts: dict[str, int] = {}
        for key in self.executions.read_text().split("\n")[:-1]:
            counts[key] = counts.get(key, 0) + 1
        return counts


class CallerProgram:
    """The process with the callers of one fleet."""

    def __init__(
        self, kind: str, url: str, agents: int, folder: Path, environment: Mapping[str, str], pace: Pace
    ) -> None:
        self.file = folder / f"{kind}.calls"
        argv = [
            "setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "trial.traffic", kind, url, str(agents),
            str(self.file), str(pace.lines), str(pace.pause), str(pace.between),
        ]  # fmt: skip
        with (folder / f"{kind}-callers.log").open("wb") as log:
            self._process = subprocess.Popen(
                argv, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # a Ctrl-C is for the trial, which lets them hear their last
            )  # fmt: skip

    def alive(self) -> bool:
        return self._process.poll() is None

    def finish(self) -> None:
        """No more posts; waits for the ends of those that were posted."""
        self._process.terminate()
        try:
            self._process.wait(END + 30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def caller_log(self) -> CallerLog:
        """Until now."""
        if not self.file.exists():
            return CallerLog()
        with self.file.open() as lines:
            return read(lines)
