"""What runs outside the cluster in these tests: built-in agents that connect by a host name, and the command line.

Used by the tests that play one way in each. An agent is the program of `fairlead agent run`, the platform's caller is
`fairlead` with the address of a Service, which the machine reaches as pods do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.kube import INGRESS, Kube, behind

FAIRLEAD = [sys.executable, "-m", "fairlead"]
TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class OutsidePlatform:
    """The API of one fleet."""

    address: str
    token: str

    def output(self, *arguments: str) -> str:
        """What `fairlead` prints; it must succeed."""
        environment = {**os.environ, "FAIRLEAD_API": self.address, "FAIRLEAD_TOKEN": self.token}
        done = subprocess.run(
            [*FAIRLEAD, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def online(self, agent: str) -> bool:
        try:
            return agent in self.output("agents", "ls", "--state", "online")
        except (AssertionError, subprocess.TimeoutExpired):
            return False  # its Service leads nowhere yet


@contextmanager
def agents(hosts: Mapping[str, str], token: str, folder: Path) -> Iterator[None]:
    """By name: the host where each finds its gateway."""
    with ExitStack() as stack:
        for name, host in hosts.items():
            url = f"ws://{host}:{INGRESS.rpartition(':')[2]}"
            with (folder / f"{name}.log").open("wb") as log:
                agent = subprocess.Popen(
                    behind(folder / "hosts", list(hosts.values()),
                           *FAIRLEAD, "agent", "run", "--id", name, "--url", url),
                    env={**os.environ, "FAIRLEAD_AGENT_TOKEN": token},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
            stack.callback(_end, agent)
        yield


def runs_commands(kube: Kube, platform: OutsidePlatform, agent: str, folder: Path) -> None:
    """It is online, and answers each of some commands, whichever pod is asked for them."""
    try:
        kube.until(f"{agent} online", lambda: platform.online(agent), TIMEOUT)
    except AssertionError:
        print((folder / f"{agent}.log").read_text(), file=sys.stderr)
        raise
    for number in range(6):
        assert platform.output("exec", agent, "--", "echo", f"call {number}") == f"call {number}\n"


def _end(agent: subprocess.Popen[bytes]) -> None:
    agent.terminate()
    try:
        agent.wait(60)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()
