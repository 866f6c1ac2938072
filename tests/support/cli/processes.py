"""Gateways and agents as processes of their own, each with its log. Used by the fixtures `fleet` and `gateway_over`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.waiting import WAIT, wait_until


def environment(api: str | None) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
    return {**env, "FAIRLEAD_API": api} if api is not None else env


class Part:
    """A process of the fleet, with its log."""

    def __init__(self, log: Path, *args: str) -> None:
        self.log = log
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fairlead", *args],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment(None),
                cwd=log.parent,
            )

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        """What it has said that matches."""

        def look() -> re.Match[str] | None:
            text = self.log.read_text()
            assert self.process.poll() is None, text
            return re.search(pattern, text)

        found = wait_until(look)
        assert found is not None
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(WAIT)


@dataclass
class CliFleet:
    """One gateway and the agent web-1, for tests that leave them as they were."""

    links: str
    api: str
    admin: str
    agent: Part


def gateway(folder: Path, *flags: str) -> tuple[Part, str, str, str]:
    """A gateway, and its three addresses: links, API, probes."""
    ports = ("--link-port=0", "--api-port=0", "--admin-port=0")
    part = Part(folder / "gateway.log", "serve", "--node=node-1", f"--data={folder / 'data'}", *ports, *flags)
    try:
        where = part.wait_for_line(r"is ready: links on ([\d.:]+), api on ([\d.:]+), admin on ([\d.:]+)")
    except BaseException:
        part.stop()
        raise
    return part, f"ws://{where[1]}", f"http://{where[2]}", f"http://{where[3]}"
