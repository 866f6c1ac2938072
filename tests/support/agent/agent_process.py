"""An agent in a process of its own: what a test signals, kills and waits for.

Started by the fixture `agent_process`, which ends whatever a test leaves behind, with all its children.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil

from support.agent.scripted_link import TIMEOUT


class AgentProcess:
    """An agent in a process of its own. Its log is a file: a pipe that nobody reads would stop it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = folder / "agent.log"
        environment = os.environ | {
            "FAIRLEAD_AGENT_TOKEN": "token-1",
            "FAIRLEAD_AGENT_CONFIG": os.devnull,  # and not that of an agent which is installed here
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])),
        }
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self._process.wait, TIMEOUT)

    def stop(self) -> None:
        """End it with all that it started."""
        if self._process.poll() is None:
            family = psutil.Process(self.pid).children(recursive=True)
            self._process.kill()
            for child in family:
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    pass
        self._process.wait(TIMEOUT)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
